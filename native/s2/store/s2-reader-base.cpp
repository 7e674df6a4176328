#include "s2-reader-base.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <pthread.h>
#include <utility>

namespace s2 {
namespace {

constexpr int32_t MOST_RETRIES = 1000;

// Costs a quarter more of the processor's time where memory is plenty. Where it is short that is less than it costs the
// kernel to find the pages itself, and they count against the budget until it does.
void drop_from_cache(const Piece & piece) {
    const int64_t first = piece.begin / Read::PAGE * Read::PAGE;
    posix_fadvise(piece.fd, first, piece.end - first, POSIX_FADV_DONTNEED);
}

} // namespace

bool passes_by_cache(Method method) {
    return method == Method::Direct || method == Method::Uring;
}

ReaderBase::ReaderBase(std::shared_ptr<const Files> files, const ReaderParams & params, Method method, Done done)
    : files_(std::move(files)), params_(params), queue_(*files_, passes_by_cache(method), params.depth, params.piece),
      method_(method), done_(std::move(done)) {}

void ReaderBase::submit(const Read * reads, size_t n) {
    queue_.submit(reads, n);
    wake();
}

void ReaderBase::promote(uint64_t tag) {
    if (queue_.promote(tag)) {
        wake();
    }
}

int64_t ReaderBase::fault(const Piece & piece) const {
    return params_.fault ? params_.fault(piece.file, piece.begin, piece.end - piece.begin) : 0;
}

bool ReaderBase::advance(Piece & piece, int64_t result, std::string & error) const {
    // Cancelled: the thread that began it has come to its end.
    if ((result == -EINTR || result == -EAGAIN || result == -ECANCELED) && ++piece.retries < MOST_RETRIES) {
        return false;
    }
    if (result == -EINVAL && piece.fd != files_->cached(piece.file)) {
        piece.fd = files_->cached(piece.file); // this one not past the page cache
        return false;
    }
    if (result < 0) {
        error = files_->failed(piece.file, piece.at, piece.left(), (int) -result);
        return true;
    }
    const int64_t before = piece.at;
    piece.at += result;
    if (piece.complete()) {
        if (piece.fd == files_->cached(piece.file)) {
            drop_from_cache(piece);
        }
        return true;
    }
    const int64_t end = piece.at;
    if (passes_by_cache(method_)) {
        piece.at = piece.at / Read::PAGE * Read::PAGE;
    }
    if (piece.at > before) {
        return false;
    }
    const Read & read = piece.request->read;
    const int64_t from = std::max(end, read.offset);
    error = files_->cut_short(piece.file, from, read.offset + read.bytes - from);
    return true;
}

void ReaderBase::wait_until(const std::function<bool()> & over) {
    bool watches = false;
    {
        std::unique_lock<std::mutex> lock(watch_mutex_);
        while (!over()) {
            if (watched_ || !gives_watch()) {
                news_.wait(lock);
                continue;
            }
            watched_ = watches = true;
            lock.unlock();
            watch();
            lock.lock();
            watched_ = false;
            news_.notify_all(); // another one that waits takes over when this one leaves
        }
    }
    if (watches) {
        relieve();
    }
}

bool ReaderBase::take_watch() {
    const std::lock_guard<std::mutex> lock(watch_mutex_);
    return !std::exchange(watched_, true);
}

void ReaderBase::leave_watch() {
    const std::lock_guard<std::mutex> lock(watch_mutex_);
    watched_ = false;
    news_.notify_all();
}

void ReaderBase::report(std::vector<Outcome> & outcomes) {
    if (outcomes.empty()) {
        return;
    }
    std::vector<int8_t> changed(files_->count(), -1); // not asked yet
    for (Outcome & outcome : outcomes) {
        if (outcome.error.empty()) {
            int8_t & known = changed[outcome.file];
            known = known < 0 ? files_->changed(outcome.file) : known;
            outcome.error = known ? files_->was_changed(outcome.file) : "";
        }
        done_(outcome.tag, outcome.error);
    }
    outcomes.clear();
    const std::lock_guard<std::mutex> lock(watch_mutex_);
    news_.notify_all();
}

std::thread start_thread(std::function<void()> body) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); // a thread begins with the mask of the one that starts it
    const auto restore = [](sigset_t * mask) { pthread_sigmask(SIG_SETMASK, mask, nullptr); };
    const std::unique_ptr<sigset_t, decltype(restore)> restored(&before, restore);
    return std::thread([body = std::move(body)] {
        pthread_setname_np(pthread_self(), "s2-read");
        body();
    });
}

} // namespace s2
