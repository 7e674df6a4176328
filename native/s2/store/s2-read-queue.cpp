#include "s2-read-queue.h"

#include <algorithm>

namespace s2 {
namespace {

int64_t rounded_down(int64_t offset) {
    return offset / Read::PAGE * Read::PAGE;
}
int64_t rounded_up(int64_t offset) {
    return rounded_down(offset + Read::PAGE - 1);
}

} // namespace

ReadQueue::ReadQueue(const Files & files, bool direct, int32_t depth, int64_t piece)
    : files_(files), direct_(direct), most_prefetch_(std::max(depth / 4, 1)), piece_(std::max(rounded_down(piece), Read::PAGE)) {}

void ReadQueue::submit(const Read * reads, size_t n) {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t n_pieces = 0;
    for (size_t i = 0; i < n; ++i) {
        auto & queue = reads[i].demand ? demanded_ : prefetched_;
        Request request;
        request.read = reads[i];
        request.next = reads[i].offset;
        queue.push_back(std::move(request));
        queue.back().place = std::prev(queue.end());
        by_tag_[reads[i].tag] = &queue.back();
        n_pieces += 1 + reads[i].bytes / piece_;
    }
    wake(n_pieces);
}

bool ReadQueue::promote(uint64_t tag) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_tag_.find(tag);
    if (found == by_tag_.end() || found->second->read.demand) {
        return false;
    }
    Request & request = *found->second;
    request.read.demand = true;
    n_prefetch_ -= request.n_flying;
    if (request.queued) {
        demanded_.splice(demanded_.end(), prefetched_, request.place);
    }
    wake(1 + request.read.bytes / piece_);
    return true;
}

bool ReadQueue::withdraw(uint64_t tag) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = by_tag_.find(tag);
    if (found == by_tag_.end()) {
        return false;
    }
    Request & request = *found->second;
    if (!request.queued || request.n_flying || request.next != request.read.offset) {
        return false; // the kernel writes to its buffer, or has written a part
    }
    by_tag_.erase(found);
    queue_of(request).erase(request.place);
    return true;
}

bool ReadQueue::take(Piece & piece) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return take_locked(piece);
}

bool ReadQueue::wait_and_take(Piece & piece) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopped_ && !startable()) {
        ++n_waiting_;
        more_.wait(lock);
        --n_waiting_;
    }
    return take_locked(piece);
}

bool ReadQueue::finish(const Piece & piece, const std::string & error, Outcome & outcome) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Request & request = *piece.request;
    --request.n_flying;
    n_prefetch_ -= !request.read.demand;
    if (!error.empty() && (request.error.empty() || piece.at < request.error_at)) {
        request.error    = error; // of several the first in the file; what has not been begun never will
        request.error_at = piece.at;
        leave_queue(request);
    }
    if (request.n_flying || !request.all_given()) {
        return false;
    }
    outcome = { request.read.tag, request.read.file, std::move(request.error) };
    by_tag_.erase(outcome.tag);
    flying_.erase(request.place);
    return true;
}

bool ReadQueue::demands() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !demanded_.empty();
}

void ReadQueue::stop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    more_.notify_all();
}

bool ReadQueue::stopped() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return stopped_;
}

std::list<Request> * ReadQueue::startable() {
    if (stopped_) {
        return nullptr;
    }
    if (!demanded_.empty()) {
        return &demanded_;
    }
    return prefetched_.empty() || n_prefetch_ >= most_prefetch_ ? nullptr : &prefetched_;
}

bool ReadQueue::take_locked(Piece & piece) {
    std::list<Request> * queue = startable();
    if (!queue) {
        return false;
    }
    Request & request = queue->front();
    cut(request, piece);
    ++request.n_flying;
    n_prefetch_ += !request.read.demand;
    if (request.all_given()) {
        leave_queue(request);
    }
    if (startable()) {
        wake(1);
    }
    return true;
}

// The next piece of a read. Pieces end at the end of a page.
void ReadQueue::cut(Request & request, Piece & piece) const {
    const Read &  read  = request.read;
    const int64_t first = rounded_down(read.offset);
    const int64_t begin = rounded_down(request.next);
    piece         = Piece();
    piece.request = &request;
    piece.file    = read.file;
    piece.fd      = direct_ ? files_.direct(read.file) : files_.cached(read.file);
    piece.wanted  = std::min(begin + piece_, read.offset + read.bytes);
    piece.begin   = direct_ ? begin : request.next;
    piece.end     = direct_ ? rounded_up(piece.wanted) : piece.wanted;
    piece.at      = piece.begin;
    piece.to      = read.to + (piece.begin - first);
    request.next  = piece.wanted;
}

void ReadQueue::leave_queue(Request & request) {
    if (request.queued) {
        request.queued = false;
        flying_.splice(flying_.end(), queue_of(request), request.place);
    }
}

void ReadQueue::wake(size_t n) {
    for (n = std::min(n, (size_t) n_waiting_); n > 0; --n) {
        more_.notify_one();
    }
}

} // namespace s2
