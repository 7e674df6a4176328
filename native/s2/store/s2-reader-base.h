#pragma once

// What the ways to read have in common. Each is a thread or more that take pieces, have the kernel read them and report.

#include "s2-files.h"
#include "s2-read-queue.h"
#include "s2-reader.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace s2 {

using Done = std::function<void(uint64_t tag, const std::string & error)>;

class ReaderBase : public Reader {
  public:
    ReaderBase(std::shared_ptr<const Files> files, const ReaderParams & params, Method method, Done done);

    void submit(const Read * reads, size_t n) override;
    void promote(uint64_t tag) override;
    bool withdraw(uint64_t tag) override { return queue_.withdraw(tag); }
    void wait_until(const std::function<bool()> & over) override;

    Method      method() const override { return method_; }
    std::string reason() const override { return reason_; }
    void        set_reason(std::string reason) { reason_ = std::move(reason); }

  protected:
    const std::shared_ptr<const Files> files_;
    const ReaderParams params_;
    ReadQueue queue_;

    virtual void wake() {} // there may be something to take

    // Looks after the reads until some are over; called by the one thread that has the watch. Readers whose own threads
    // always do so never give it away.
    virtual bool gives_watch() const { return false; }
    virtual void watch() {}
    virtual void relieve() {} // the thread that waited has left
    bool take_watch();        // false: another thread has it
    void leave_watch();

    // Before a piece is given to the kernel: 0, a negative errno, or microseconds by which it is to be late.
    int64_t fault(const Piece & piece) const;
    // Takes what the kernel said to a piece, bytes or a negative errno; false: it must be asked again.
    bool advance(Piece & piece, int64_t result, std::string & error) const;
    // Calls `done` for these reads, unless their file has changed since it was opened; who waits is told.
    void report(std::vector<Outcome> & outcomes);

  private:
    const Method method_;
    const Done   done_;
    std::string  reason_;

    std::mutex              watch_mutex_;
    std::condition_variable news_;
    bool                    watched_ = false;
};

bool passes_by_cache(Method method);

std::unique_ptr<ReaderBase> make_thread_reader(std::shared_ptr<const Files>, const ReaderParams &, Method, Done);
// Null where the kernel has no io_uring for us, and `why` says what it said.
std::unique_ptr<ReaderBase> make_uring_reader(std::shared_ptr<const Files>, const ReaderParams &, Method, Done, std::string & why);

// A thread of the reader: it has its name and gets none of the process's signals. Throws std::system_error.
std::thread start_thread(std::function<void()> body);

} // namespace s2
