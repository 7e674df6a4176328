// Reads by io_uring. Past the page cache the thread that wants reads gives them to the kernel itself, and who waits for them
// takes them back: on a machine whose cores all multiply, waking a thread for that costs more than doing it. A thread of the
// reader's does what is left: reads that nobody attends to, and those that found no room. Through the page cache the kernel
// copies while it is asked, which is work for that thread alone.

#include "s2-reader-base.h"
#include "s2-ring.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <utility>

namespace s2 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto    BUSY       = std::chrono::milliseconds(1); // before the kernel is asked again when it took less than all
constexpr int64_t MOST_BYTES = 1 << 30;                      // in one go
constexpr int32_t MOST_DEPTH = 1024;

int32_t depth_of(const ReaderParams & params) {
    return std::clamp(params.depth, 1, MOST_DEPTH);
}

// A piece in flight.
struct Flight {
    Piece             piece;
    Clock::time_point not_before;
    std::string       error;
    bool              free = true;
    bool              over = false; // read; may have to wait for `not_before`
};

// Wakes a thread that polls.
class Bell {
  public:
    static std::unique_ptr<Bell> make() { // null: no descriptor is left
        const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        return std::unique_ptr<Bell>(fd < 0 ? nullptr : new Bell(fd));
    }
    Bell(const Bell &) = delete;
    ~Bell() { close(fd_); }

    int  fd() const { return fd_; }
    void ring() {
        if (!rung_.exchange(true)) {
            const uint64_t one = 1;
            [[maybe_unused]] const ssize_t n = write(fd_, &one, sizeof(one));
        }
    }
    void hush() {
        uint64_t count;
        [[maybe_unused]] const ssize_t n = ::read(fd_, &count, sizeof(count));
        rung_ = false;
    }

  private:
    explicit Bell(int fd) : fd_(fd) {}

    const int         fd_;
    std::atomic<bool> rung_{ false };
};

class UringReader : public ReaderBase {
  public:
    UringReader(std::shared_ptr<const Files> files, const ReaderParams & params, Method method, Done done,
                std::unique_ptr<Ring> ring, std::unique_ptr<Bell> for_thread, std::unique_ptr<Bell> for_watch)
        : ReaderBase(std::move(files), params, method, std::move(done)), shared_(passes_by_cache(method)),
          for_thread_(std::move(for_thread)), for_watch_(std::move(for_watch)), ring_(std::move(ring)), flights_(depth_of(params)) {
        thread_ = start_thread([this] { work(); });
    }

    ~UringReader() override {
        queue_.stop();
        for_thread_->ring();
        thread_.join();
    }

    void look() override {
        if (n_flying_ == 0 || !shared_ || !take_watch()) {
            return;
        }
        std::vector<Outcome> outcomes;
        turn(outcomes);
        report(outcomes);
        leave_watch();
        relieve();
    }

    void attend(bool attended) override {
        attended_ = attended;
        if (!attended && n_flying_ > 0) {
            for_thread_->ring();
        }
    }

  protected:
    bool gives_watch() const override { return shared_; }
    void watch() override { watch(false); }

    void relieve() override {
        if (wants_care()) {
            for_thread_->ring();
        }
    }

    void wake() override {
        if (shared_) {
            const std::lock_guard<std::mutex> lock(ring_mutex_);
            give();
        }
        if (!shared_ || wants_care()) {
            for_thread_->ring();
        }
    }

  private:
    const bool                  shared_; // by all threads, not this one's alone
    std::atomic<bool>           attended_{ false };
    const std::unique_ptr<Bell> for_thread_; // there is something for the reader's thread to do
    const std::unique_ptr<Bell> for_watch_;  // reads are over of which the ring says nothing

    std::mutex                  ring_mutex_; // for what follows
    const std::unique_ptr<Ring> ring_;
    std::vector<Flight>         flights_;
    std::atomic<size_t>         n_flying_{ 0 };
    std::atomic<bool>           pending_{ false }; // the kernel took less than all
    bool                        failed_ = false;   // a piece, before the kernel had it
    std::thread                 thread_;

    // Whether the reader's thread has to look after the reads.
    bool wants_care() { return n_flying_ > 0 && (!shared_ || !attended_ || pending_ || queue_.demands()); }

    void work() {
        while (true) {
            const bool stopped = queue_.stopped(); // before the look into the queue: a call after it is heard
            {
                const std::lock_guard<std::mutex> lock(ring_mutex_);
                give();
                if (stopped && n_flying_ == 0) {
                    return;
                }
            }
            if ((stopped || wants_care()) && take_watch()) {
                watch(true);
                leave_watch();
            } else {
                rest(pending_ ? Clock::now() + BUSY : Clock::time_point::max(), true, false);
            }
        }
    }

    // Until reads are over, or something else is worth another look: held back reads, a kernel that was busy or, for the
    // reader's thread, its bell.
    void watch(bool by_thread) {
        std::vector<Outcome> outcomes;
        const auto next = turn(outcomes);
        if (outcomes.empty()) {
            rest(next, by_thread, true);
            turn(outcomes);
        }
        report(outcomes);
    }

    // Takes back what is over and begins what there is room for; when there is something to do without a call.
    Clock::time_point turn(std::vector<Outcome> & outcomes) {
        const std::lock_guard<std::mutex> lock(ring_mutex_);
        take_back();
        land(outcomes);
        give();
        return next_turn();
    }

    void give() {
        begin();
        const int result = ring_->enter();
        if (result < 0 && result != -EAGAIN && result != -EBUSY && result != -EINTR) {
            ring_->take_back([&](uint64_t i) { fail(flights_[i], -result); });
        }
        pending_ = ring_->pending();
        if (std::exchange(failed_, false)) {
            for_watch_->ring(); // who watches may sleep until the ring has something
        }
    }

    void begin() {
        for (size_t i = 0; i < flights_.size() && n_flying_ < flights_.size(); ++i) {
            Flight & flight = flights_[i];
            if (!flight.free) {
                continue;
            }
            if (!queue_.take(flight.piece)) {
                return;
            }
            ++n_flying_;
            flight.free = false;
            flight.over = flight.piece.complete(); // nothing to read
            failed_ |= flight.over;
            flight.error.clear();
            const int64_t late = fault(flight.piece);
            flight.not_before = late > 0 ? Clock::now() + std::chrono::microseconds(late) : Clock::time_point();
            if (late < 0) {
                fail(flight, (int) -late);
            }
            if (!flight.over) {
                put(i);
            }
        }
    }

    void put(size_t i) {
        const Piece & piece = flights_[i].piece;
        ring_->read(piece.fd, piece.target(), (uint32_t) std::min(piece.left(), MOST_BYTES), piece.at, i);
    }

    void fail(Flight & flight, int error) {
        const Piece & piece = flight.piece;
        flight.error = files_->failed(piece.file, piece.at, piece.left(), error);
        flight.over  = true;
        failed_      = true;
    }

    void take_back() {
        ring_->reap([this](uint64_t i, int32_t result) {
            Flight & flight = flights_[i];
            flight.over = advance(flight.piece, result, flight.error);
            if (!flight.over) {
                put(i);
            }
        });
    }

    // Finishes what has been read and held back long enough.
    void land(std::vector<Outcome> & outcomes) {
        Outcome outcome;
        for (Flight & flight : flights_) {
            if (flight.free || !flight.over || (flight.not_before != Clock::time_point() && Clock::now() < flight.not_before)) {
                continue;
            }
            flight.free = true;
            --n_flying_;
            if (queue_.finish(flight.piece, flight.error, outcome)) {
                outcomes.push_back(std::move(outcome));
            }
        }
    }

    Clock::time_point next_turn() const {
        Clock::time_point next = pending_ ? Clock::now() + BUSY : Clock::time_point::max();
        for (const Flight & flight : flights_) {
            if (!flight.free && flight.over) {
                next = std::min(next, flight.not_before);
            }
        }
        return next;
    }

    // Until `end` at the latest.
    void rest(Clock::time_point end, bool is_thread, bool is_watch) {
        pollfd ready[] = {
            { is_thread ? for_thread_->fd() : -1, POLLIN, 0 },
            { is_watch ? for_watch_->fd() : -1, POLLIN, 0 },
            { is_watch ? ring_->fd() : -1, POLLIN, 0 },
        };
        const auto ns  = std::chrono::nanoseconds(std::max(end - Clock::now(), Clock::duration::zero())).count();
        const timespec wait{ (time_t) (ns / 1000000000), (long) (ns % 1000000000) };
        ppoll(ready, 3, end == Clock::time_point::max() ? nullptr : &wait, nullptr);
        if (ready[0].revents & POLLIN) {
            for_thread_->hush();
        }
        if (ready[1].revents & POLLIN) {
            for_watch_->hush();
        }
    }
};

} // namespace

std::unique_ptr<ReaderBase> make_uring_reader(std::shared_ptr<const Files> files, const ReaderParams & params, Method method,
                                              Done done, std::string & why) {
    auto ring = Ring::open(depth_of(params), why);
    auto for_thread = Bell::make(), for_watch = Bell::make();
    if (!ring || !for_thread || !for_watch) {
        return nullptr;
    }
    return std::make_unique<UringReader>(std::move(files), params, method, std::move(done), std::move(ring), std::move(for_thread),
                                         std::move(for_watch));
}

} // namespace s2
