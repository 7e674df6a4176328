#pragma once

// What is to be read next: two queues of reads, cut into pieces. Knows nothing of how pieces are read.

#include "s2-files.h"
#include "s2-reader.h"

#include <condition_variable>
#include <list>
#include <mutex>
#include <unordered_map>

namespace s2 {

struct Request {
    Read                         read;
    int64_t                      next;          // offset of the first byte not yet given out
    int32_t                      n_flying = 0;  // pieces given out and not finished
    std::string                  error;
    int64_t                      error_at = 0;
    bool                         queued = true; // in one of the queues
    std::list<Request>::iterator place;         // in the queue, or among those that fly

    bool all_given() const { return next >= read.offset + read.bytes || !error.empty(); }
};

// A part of a read that the kernel gets at once.
struct Piece {
    Request * request = nullptr;
    int32_t   file = 0;
    int       fd = -1;
    int64_t   begin = 0, end = 0; // what the kernel is asked for: whole pages where the page cache is passed by
    int64_t   wanted = 0;         // end of the bytes that matter
    int64_t   at = 0;             // read up to here
    char *    to = nullptr;       // where `begin` goes
    int32_t   retries = 0;

    char *  target() const { return to + (at - begin); }
    int64_t left() const { return end - at; }
    bool    complete() const { return at >= wanted; }
};

struct Outcome {
    uint64_t    tag;
    int32_t     file;
    std::string error;
};

class ReadQueue {
  public:
    ReadQueue(const Files & files, bool direct, int32_t depth, int64_t piece);

    void submit(const Read * reads, size_t n);
    bool promote(uint64_t tag); // true: there is more to take now
    bool withdraw(uint64_t tag);

    bool take(Piece & piece);           // false: nothing may be begun now
    bool wait_and_take(Piece & piece);  // false: stopped
    // True when the piece was the last one of its read, which is forgotten then. `error` empty: it was read.
    bool finish(const Piece & piece, const std::string & error, Outcome & outcome);

    bool demands(); // whether a read that is demanded waits to be begun

    void stop(); // drops what is queued; from now on nothing is taken
    bool stopped();

  private:
    const Files &  files_;
    const bool     direct_;
    const int32_t  most_prefetch_; // pieces
    const int64_t  piece_;

    std::mutex              mutex_;
    std::condition_variable more_;
    std::list<Request>      demanded_, prefetched_, flying_;
    std::unordered_map<uint64_t, Request *> by_tag_;
    int32_t n_prefetch_ = 0; // pieces in flight
    int32_t n_waiting_  = 0; // threads
    bool    stopped_    = false;

    std::list<Request> & queue_of(const Request & request) { return request.read.demand ? demanded_ : prefetched_; }
    std::list<Request> * startable();
    bool take_locked(Piece & piece);
    void cut(Request & request, Piece & piece) const;
    void leave_queue(Request & request);
    void wake(size_t n);
};

} // namespace s2
