// One thread that gives pieces to the kernel by io_uring and takes them back when they are read.

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

class UringReader : public ReaderBase {
  public:
    UringReader(std::shared_ptr<const Files> files, const ReaderParams & params, Method method, Done done,
                std::unique_ptr<Ring> ring, int bell)
        : ReaderBase(std::move(files), params, method, std::move(done)), ring_(std::move(ring)), bell_(bell),
          flights_(depth_of(params)) {
        thread_ = start_thread([this] { work(); });
    }

    ~UringReader() override {
        queue_.stop();
        wake();
        thread_.join();
        close(bell_);
    }

  private:
    const std::unique_ptr<Ring> ring_;
    const int                   bell_; // eventfd
    std::atomic<bool>           rung_{ false };
    std::thread                 thread_;

    // The thread's own.
    std::vector<Flight>  flights_;
    size_t               n_flying_ = 0;
    std::vector<Outcome> outcomes_;

    void wake() override {
        if (!rung_.exchange(true)) {
            const uint64_t one = 1;
            [[maybe_unused]] const ssize_t n = write(bell_, &one, sizeof(one));
        }
    }

    void work() {
        while (true) {
            const bool stopped = queue_.stopped(); // before the look into the queue: a bell rung after it is heard
            begin();
            give();
            const size_t n_over   = take_back();
            const size_t n_landed = land();
            report(outcomes_);
            if (stopped && n_flying_ == 0) {
                return;
            }
            if (n_over + n_landed == 0) {
                rest();
            }
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
    }

    void give() {
        const int result = ring_->enter();
        if (result < 0 && result != -EAGAIN && result != -EBUSY && result != -EINTR) {
            ring_->take_back([&](uint64_t i) { fail(flights_[i], -result); });
        }
    }

    size_t take_back() {
        return ring_->reap([this](uint64_t i, int32_t result) {
            Flight & flight = flights_[i];
            flight.over = advance(flight.piece, result, flight.error);
            if (!flight.over) {
                put(i);
            }
        });
    }

    // Finishes what has been read and held back long enough; how many.
    size_t land() {
        const size_t before = n_flying_;
        Outcome outcome;
        for (Flight & flight : flights_) {
            if (flight.free || !flight.over || (flight.not_before != Clock::time_point() && Clock::now() < flight.not_before)) {
                continue;
            }
            flight.free = true;
            --n_flying_;
            if (queue_.finish(flight.piece, flight.error, outcome)) {
                outcomes_.push_back(std::move(outcome));
            }
        }
        return before - n_flying_;
    }

    // Until a read is over or the bell rings, or a piece that was held back may be finished.
    void rest() {
        pollfd ready[] = { { bell_, POLLIN, 0 }, { ring_->fd(), POLLIN, 0 } };
        const auto end = next_turn();
        const auto ns  = std::chrono::nanoseconds(std::max(end - Clock::now(), Clock::duration::zero())).count();
        const timespec wait{ (time_t) (ns / 1000000000), (long) (ns % 1000000000) };
        ppoll(ready, 2, end == Clock::time_point::max() ? nullptr : &wait, nullptr);
        if (ready[0].revents & POLLIN) {
            uint64_t count;
            [[maybe_unused]] const ssize_t n = ::read(bell_, &count, sizeof(count));
            rung_ = false;
        }
    }

    Clock::time_point next_turn() const {
        Clock::time_point turn = ring_->pending() ? Clock::now() + BUSY : Clock::time_point::max();
        for (const Flight & flight : flights_) {
            if (!flight.free && flight.over) {
                turn = std::min(turn, flight.not_before);
            }
        }
        return turn;
    }
};

} // namespace

std::unique_ptr<ReaderBase> make_uring_reader(std::shared_ptr<const Files> files, const ReaderParams & params, Method method,
                                              Done done, std::string & why) {
    auto ring = Ring::open(depth_of(params), why);
    const int bell = ring ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (bell < 0) {
        return nullptr;
    }
    return std::make_unique<UringReader>(std::move(files), params, method, std::move(done), std::move(ring), bell);
}

} // namespace s2
