// A pool of threads, each of which reads one piece at a time with pread.

#include "s2-reader-base.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <unistd.h>

namespace s2 {
namespace {

constexpr int32_t MOST_THREADS = 16;

class ThreadReader : public ReaderBase {
  public:
    ThreadReader(std::shared_ptr<const Files> files, const ReaderParams & params, Method method, Done done)
        : ReaderBase(std::move(files), params, method, std::move(done)) {
        const size_t n = std::clamp(params.depth, 1, MOST_THREADS);
        while (threads_.size() < n) {
            try {
                threads_.push_back(start_thread([this] { work(); }));
            } catch (const std::system_error &) {
                if (threads_.empty()) {
                    throw;
                }
                break; // fewer will do
            }
        }
    }

    ~ThreadReader() override {
        queue_.stop();
        for (std::thread & thread : threads_) {
            thread.join();
        }
    }

  private:
    std::vector<std::thread> threads_;

    void work() {
        Piece piece;
        Outcome outcome;
        std::vector<Outcome> outcomes;
        while (queue_.wait_and_take(piece)) {
            if (queue_.finish(piece, read(piece), outcome)) {
                outcomes.push_back(std::move(outcome));
                report(outcomes);
            }
        }
    }

    // Empty, or what went wrong.
    std::string read(Piece & piece) const {
        const int64_t late = fault(piece);
        if (late < 0) {
            return files_->failed(piece.file, piece.at, piece.left(), (int) -late);
        }
        std::string error;
        bool over = piece.complete();
        while (!over) {
            const ssize_t n = pread(piece.fd, piece.target(), piece.left(), piece.at);
            over = advance(piece, n < 0 ? -errno : n, error);
        }
        if (late > 0) {
            std::this_thread::sleep_for(std::chrono::microseconds(late));
        }
        return error;
    }
};

} // namespace

std::unique_ptr<ReaderBase> make_thread_reader(std::shared_ptr<const Files> files, const ReaderParams & params, Method method,
                                               Done done) {
    return std::make_unique<ThreadReader>(std::move(files), params, method, std::move(done));
}

} // namespace s2
