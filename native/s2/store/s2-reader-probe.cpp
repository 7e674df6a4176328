#include "s2-reader-probe.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <sys/mman.h>
#include <unistd.h>

namespace s2 {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t WINDOW       = 256 << 10; // bytes read in one place
constexpr int     MOST_WINDOWS = 32;
constexpr int64_t MOST_CACHED  = 2 << 20;   // bytes of a unit of the page cache
constexpr double  SECONDS      = 0.025;     // one turn through all windows
constexpr int     TURNS        = 3;         // of all ways; the best counts
constexpr double  MOST_SECONDS = 0.1;       // no further turn after these

// What a way must be faster by to be preferred to one that leaves the page cache alone, which takes a quarter of the
// processor's time per byte, or to one that needs fewer threads.
constexpr double PREFER_DIRECT = 1.3, PREFER_URING = 1.05;

// In the order in which equals are preferred.
constexpr Method METHODS[] = { Method::Uring, Method::Direct, Method::UringBuffered, Method::Buffered };

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

// A piece of a file, what pread says is there, and what was read there last.
struct Window {
    int32_t file;
    int64_t offset, bytes;
    std::shared_ptr<char> truth, found; // of WINDOW bytes

    bool read_truth(const Files & files) {
        for (int64_t at = 0; at < bytes;) {
            const ssize_t n = pread(files.cached(file), truth.get() + at, bytes - at, offset + at);
            if (n <= 0) {
                return false;
            }
            at += n;
        }
        return true;
    }
    // What has just been written leaves the page cache only once it is on the disk.
    void settle(const Files & files) const {
        constexpr unsigned ALL = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
        sync_file_range(files.cached(file), offset, bytes, ALL);
    }
    // The page cache gives up only those of its units that lie within the range as a whole.
    void forget(const Files & files) const {
        const int64_t from = std::max<int64_t>(offset - MOST_CACHED, 0);
        posix_fadvise(files.cached(file), from, offset + bytes + MOST_CACHED - from, POSIX_FADV_DONTNEED);
    }
    bool right() const { return std::memcmp(truth.get(), found.get(), bytes) == 0; }
};

// `bytes` that go back to the system with their last owner. What malloc has freed of this size it keeps, and takes the next
// buffer as large from its heaps.
std::shared_ptr<char> mapped(int64_t bytes) {
    void * const room = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) {
        throw std::bad_alloc();
    }
    return { (char *) room, [bytes](char * start) { munmap(start, bytes); } };
}

// Memory for `n` windows in huge pages, as slots are: ways past the page cache pin every page of where they read to, and would
// look twice as slow as they are.
std::shared_ptr<char> room_for_windows(int n) {
    constexpr int64_t HUGE_PAGE = 2 << 20;
    const int64_t     bytes     = (n * WINDOW + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const auto        room      = mapped(bytes + HUGE_PAGE);
    char * const      start     = (char *) (((uintptr_t) room.get() + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE);
    madvise(start, bytes, MADV_HUGEPAGE);
    return { room, start };
}

// `n` windows spread evenly over the files, laid end to end.
std::vector<Window> spread_windows(const Files & files, int n) {
    int64_t total = 0;
    for (size_t i = 0; i < files.count(); ++i) {
        total += files.size(i);
    }
    std::vector<Window> windows;
    const auto    room = room_for_windows(n), truths = mapped(n * WINDOW);
    const int64_t step = total / n;
    int64_t begin = 0, next = step / 2;
    for (size_t i = 0; i < files.count(); begin += files.size(i++)) {
        for (; (int) windows.size() < n && next < begin + files.size(i); next += std::max<int64_t>(step, 1)) {
            const int64_t offset = (next - begin) / Read::PAGE * Read::PAGE;
            const int64_t at     = windows.size() * WINDOW;
            windows.push_back({ (int32_t) i, offset, std::min(WINDOW, files.size(i) - offset), { truths, truths.get() + at },
                                { room, room.get() + at } });
        }
    }
    return windows;
}

// Reads the truth. Windows that would take too long on this disk are left out, at least one stays.
bool measure_truth(const Files & files, std::vector<Window> & windows) {
    const auto start = Clock::now();
    for (size_t i = 0; i < windows.size(); ++i) {
        windows[i].settle(files);
        windows[i].forget(files);
        if (!windows[i].read_truth(files)) {
            return false;
        }
        if (seconds_since(start) > SECONDS) {
            windows.erase(windows.begin() + i + 1, windows.end());
        }
    }
    return !windows.empty();
}

// The windows in an order in which those left after a cut are still spread.
std::vector<Window> mixed(std::vector<Window> windows) {
    std::vector<Window> order;
    const size_t n = windows.size();
    size_t stride = std::max<size_t>((size_t) (n * 0.618), 1);
    while (n > 1 && std::gcd(stride, n) != 1) {
        ++stride;
    }
    for (size_t i = 0; i < n; ++i) {
        order.push_back(std::move(windows[(i + 1) * stride % n]));
    }
    return order;
}

struct Trial {
    double      bytes_per_second = 0; // 0: did not work,
    std::string why;                  // and this is why
};

Trial try_method(const Files & files, std::vector<Window> & windows, Method method, const Maker & make) {
    std::mutex mutex;
    std::condition_variable over;
    size_t n_over = 0;
    Trial trial;
    const auto reader = make(method, [&](uint64_t, const std::string & error) {
        const std::lock_guard<std::mutex> lock(mutex);
        trial.why = error.empty() ? trial.why : error;
        ++n_over;
        over.notify_one();
    }, trial.why);
    if (!reader) {
        return trial;
    }
    std::vector<Read> reads;
    int64_t bytes = 0;
    for (const Window & window : windows) {
        window.forget(files);
        reads.push_back({ window.file, window.offset, window.bytes, window.found.get(), reads.size(), true });
        std::memset(window.found.get(), ~*window.truth, window.bytes); // no bytes of an earlier trial
        bytes += window.bytes;
    }
    const auto start = Clock::now();
    reader->submit(reads.data(), reads.size());
    std::unique_lock<std::mutex> lock(mutex);
    over.wait(lock, [&] { return n_over == reads.size(); });
    const double seconds = seconds_since(start);
    if (!trial.why.empty()) {
        return trial;
    }
    if (!std::all_of(windows.begin(), windows.end(), [](const Window & window) { return window.right(); })) {
        trial.why = std::string(method_words(method)) + " gave other bytes than a plain read";
        return trial;
    }
    trial.bytes_per_second = bytes / std::max(seconds, 1e-6);
    return trial;
}

void take_better(Trial & best, Trial trial) {
    if (!trial.why.empty()) {
        best = std::move(trial); // failing once is failing
    } else {
        best.bytes_per_second = std::max(best.bytes_per_second, trial.bytes_per_second);
    }
}

double preference(Method method) {
    return (passes_by_cache(method) ? PREFER_DIRECT : 1) *
           (method == Method::Uring || method == Method::UringBuffered ? PREFER_URING : 1);
}

Method best_of(const std::vector<std::pair<Method, Trial>> & trials) {
    Method best = Method::Buffered;
    double most = 0;
    for (const auto & [method, trial] : trials) {
        const double worth = trial.bytes_per_second * preference(method);
        if (worth > most) {
            most = worth;
            best = method;
        }
    }
    return best;
}

std::string in_mb(double bytes_per_second) {
    return std::to_string((long) std::lround(bytes_per_second / 1e6));
}

std::string short_words(Method method) {
    switch (method) {
        case Method::Uring:         return "by io_uring with O_DIRECT";
        case Method::Direct:        return "by threads with O_DIRECT";
        case Method::UringBuffered: return "buffered by io_uring";
        default:                    return "buffered";
    }
}

// "io_uring with O_DIRECT: 690 MB/s against 560 by threads with O_DIRECT and 420 buffered"
std::string told(Method best, const std::vector<std::pair<Method, Trial>> & trials) {
    std::string text = method_words(best), refused;
    const char * before = " MB/s against ";
    for (const auto & [method, trial] : trials) {
        if (method == best) {
            text += ": " + in_mb(trial.bytes_per_second);
        }
    }
    for (const auto & [method, trial] : trials) {
        if (method != best && trial.bytes_per_second > 0) {
            text += before + in_mb(trial.bytes_per_second) + " " + short_words(method);
            before = ", ";
        }
        if (!trial.why.empty() && refused.find(trial.why) == std::string::npos) {
            refused += "; " + trial.why;
        }
    }
    return text + (*before == ' ' ? " MB/s" : "") + refused;
}

} // namespace

const char * method_words(Method method) {
    switch (method) {
        case Method::Uring:         return "io_uring with O_DIRECT";
        case Method::Direct:        return "threads with O_DIRECT";
        case Method::UringBuffered: return "io_uring through the page cache";
        default:                    return "threads through the page cache";
    }
}

Choice probe(const Files & files, const Maker & make) {
    auto windows = mixed(spread_windows(files, MOST_WINDOWS));
    if (!measure_truth(files, windows)) {
        return { Method::Buffered, std::string(method_words(Method::Buffered)) + ": a trial could not be read" };
    }
    std::vector<std::pair<Method, Trial>> trials;
    for (const Method method : METHODS) {
        trials.emplace_back(method, Trial());
    }
    const auto start = Clock::now();
    for (int turn = 0; turn < TURNS && (turn == 0 || seconds_since(start) < MOST_SECONDS); ++turn) {
        for (auto & [method, best] : trials) {
            if (best.why.empty()) {
                take_better(best, try_method(files, windows, method, make));
            }
        }
    }
    const Method best = best_of(trials);
    return { best, told(best, trials) };
}

} // namespace s2
