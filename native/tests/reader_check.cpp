// The reader's promises, checked on real files: reader_check FOLDER [METHOD...]
//
// Each way to read is put through every case in turn. Where this machine or the folder's filesystem has no such way
// (io_uring forbidden, no O_DIRECT), the reader falls back, and the line says to what.
//
// Prints a line per method and case; exits with 1 when something is wrong.

#include "s2-reader-probe.h"
#include "s2-reader.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

using s2::Method;
using s2::Read;
using s2::Reader;
using s2::ReaderParams;
using namespace std::chrono_literals;

constexpr Method  METHODS[] = { Method::Buffered, Method::Direct, Method::Uring, Method::UringBuffered, Method::Auto };
constexpr int64_t KIB = 1024, MIB = 1024 * KIB;
constexpr auto    PATIENCE = 30s;
constexpr char    UNTOUCHED = 0x5A;

int n_wrong;

void expect(bool right, const std::string & what) {
    if (!right) {
        ++n_wrong;
        std::printf("WRONG: %s\n", what.c_str());
    }
}

bool contains(const std::string & text, const std::string & part) {
    return text.find(part) != std::string::npos;
}

// A file of random bytes, deleted with this.
struct File {
    std::string path, bytes;

    File(const std::string & folder, const std::string & name, int64_t size) : path(folder + "/" + name), bytes(size, 0) {
        std::mt19937_64 generator(size);
        for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
            const uint64_t eight = generator();
            std::memcpy(&bytes[at], &eight, std::min(sizeof(eight), bytes.size() - at));
        }
        std::ofstream(path, std::ios::binary).write(bytes.data(), size);
    }
    File(const File &) = delete;
    ~File() { unlink(path.c_str()); }
};

// Room for one read, with a page behind it that nobody may write to.
struct Target {
    int64_t offset, bytes, room;
    char *  memory;

    Target(int64_t offset_, int64_t bytes_) : offset(offset_), bytes(bytes_) {
        room   = (offset % Read::PAGE + bytes + Read::PAGE - 1) / Read::PAGE * Read::PAGE;
        memory = (char *) std::aligned_alloc(Read::PAGE, room + Read::PAGE);
        std::memset(memory, UNTOUCHED, room + Read::PAGE);
    }
    Target(Target && other) noexcept : offset(other.offset), bytes(other.bytes), room(other.room), memory(other.memory) {
        other.memory = nullptr;
    }
    ~Target() { std::free(memory); }

    Read read(uint64_t tag, bool demand = true, int32_t file = 0) const { return { file, offset, bytes, memory, tag, demand }; }
    bool holds(const File & file) const {
        return std::memcmp(memory + offset % Read::PAGE, file.bytes.data() + offset, bytes) == 0;
    }
    bool kept_within() const {
        return std::all_of(memory + room, memory + room + Read::PAGE, [](char byte) { return byte == UNTOUCHED; });
    }
};

// What has been done, in order.
class Inbox {
  public:
    void put(uint64_t tag, const std::string & error) {
        const std::lock_guard<std::mutex> lock(mutex_);
        order_.push_back(tag);
        errors_[tag] = error;
        more_.notify_all();
    }
    bool wait(size_t n) {
        std::unique_lock<std::mutex> lock(mutex_);
        const bool all = more_.wait_for(lock, PATIENCE, [&] { return order_.size() >= n; });
        expect(all, std::to_string(order_.size()) + " of " + std::to_string(n) + " reads done");
        return all;
    }
    std::vector<uint64_t> order() {
        const std::lock_guard<std::mutex> lock(mutex_);
        return order_;
    }
    std::string error(uint64_t tag) {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto found = errors_.find(tag);
        return found == errors_.end() ? "not done" : found->second;
    }
    size_t place(uint64_t tag) {
        const auto all = order();
        return std::find(all.begin(), all.end(), tag) - all.begin();
    }

  private:
    std::mutex mutex_;
    std::condition_variable more_;
    std::vector<uint64_t> order_;
    std::map<uint64_t, std::string> errors_;
};

struct Place {
    std::string folder;
    Method      method;
};

using Fault = std::function<int64_t(int32_t, int64_t, int64_t)>;

std::unique_ptr<Reader> open_reader(const Place & place, const std::vector<std::string> & files, Inbox & inbox,
                                    int32_t depth = 8, Fault fault = nullptr) {
    ReaderParams params;
    params.files  = files;
    params.method = place.method;
    params.depth  = depth;
    params.piece  = 64 * KIB;
    params.fault  = std::move(fault);
    return Reader::open(params, [&inbox](uint64_t tag, const std::string & error) { inbox.put(tag, error); });
}

void submit(Reader & reader, const std::vector<Read> & reads) {
    reader.submit(reads.data(), reads.size());
}

// Waits until `count` is at least n.
void wait_until(const std::atomic<int> & count, int n) {
    const auto end = std::chrono::steady_clock::now() + PATIENCE;
    while (count < n && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(1ms);
    }
}

// --- cases

void every_byte(const Place & place) {
    const File file(place.folder, "odd", 5 * MIB + 1234);
    const int64_t size = file.bytes.size();
    std::vector<Target> targets;
    for (const int64_t offset : { (int64_t) 0, (int64_t) 1, Read::PAGE - 1, Read::PAGE, size - 1, size - 1235, size - 3 * Read::PAGE }) {
        targets.emplace_back(offset, size - offset); // to the end of the file
        targets.emplace_back(offset, 1);
        targets.emplace_back(offset, std::min(size - offset, Read::PAGE));
        targets.emplace_back(offset, 0);
    }
    std::mt19937_64 generator(7);
    for (int i = 0; i < 200; ++i) {
        const int64_t offset = generator() % size;
        targets.emplace_back(offset, 1 + generator() % std::min(size - offset, i % 4 ? 100 * KIB : MIB));
    }
    Inbox inbox;
    const auto reader = open_reader(place, { file.path }, inbox);
    std::vector<Read> reads;
    for (size_t i = 0; i < targets.size(); ++i) {
        reads.push_back(targets[i].read(i, i % 3 == 0));
    }
    submit(*reader, reads);
    inbox.wait(targets.size());
    for (size_t i = 0; i < targets.size(); ++i) {
        const std::string what = std::to_string(targets[i].bytes) + " at " + std::to_string(targets[i].offset);
        expect(inbox.error(i).empty(), what + ": " + inbox.error(i));
        expect(targets[i].holds(file), what + ": other bytes than the file's");
        expect(targets[i].kept_within(), what + ": wrote behind the last page");
    }
}

void small_files(const Place & place) {
    const File empty(place.folder, "empty", 0), tiny(place.folder, "tiny", 3);
    Inbox inbox;
    const auto reader = open_reader(place, { empty.path, tiny.path }, inbox);
    const Target none(0, 1), all(0, 3);
    submit(*reader, { none.read(0), all.read(1, true, 1) });
    inbox.wait(2);
    expect(inbox.error(0) == empty.path + ": 1 bytes missing at 0: the file was cut short", inbox.error(0));
    expect(inbox.error(1).empty() && all.holds(tiny), "three bytes: " + inbox.error(1));
}

void missing_file(const Place & place) {
    Inbox inbox;
    const std::string path = place.folder + "/nowhere";
    try {
        open_reader(place, { path }, inbox);
        expect(false, "opened a file that is not there");
    } catch (const std::runtime_error & error) {
        expect(contains(error.what(), path) && contains(error.what(), "No such file"), error.what());
    }
}

void demand_first(const Place & place) {
    const File file(place.folder, "file", 8 * MIB);
    Inbox inbox;
    const auto reader = open_reader(place, { file.path }, inbox, 4, [](int32_t, int64_t, int64_t) { return 500; });
    std::vector<Target> targets;
    std::vector<Read> reads;
    for (int i = 0; i < 200; ++i) {
        targets.emplace_back(i * 32 * KIB, 32 * KIB);
        reads.push_back(targets.back().read(i, false));
    }
    const Target wanted(7 * MIB, 300 * KIB); // five pieces
    submit(*reader, reads);
    submit(*reader, { wanted.read(1000) });
    inbox.wait(201);
    expect(inbox.place(1000) < 100, "a demanded read was done after " + std::to_string(inbox.place(1000)) + " prefetches");
    expect(wanted.holds(file), "the demanded read's bytes");
}

void half_for_prefetch(const Place & place) {
    const File file(place.folder, "file", 4 * MIB);
    std::atomic<int> begun(0);
    Inbox inbox;
    const auto reader = open_reader(place, { file.path }, inbox, 8, [&](int32_t, int64_t, int64_t) { return ++begun, 200000; });
    std::vector<Target> targets;
    for (int i = 0; i < 10; ++i) {
        targets.emplace_back(i * 64 * KIB, 64 * KIB);
        submit(*reader, { targets.back().read(i, false) });
    }
    wait_until(begun, 4);
    std::this_thread::sleep_for(20ms);
    expect(begun == 4 || !inbox.order().empty(), std::to_string(begun) + " prefetches in flight, not 4 of 8");
    const Target wanted(2 * MIB, 4 * 64 * KIB);
    submit(*reader, { wanted.read(100) });
    wait_until(begun, 8);
    expect(inbox.order().size() < 4, "a demanded read waited for prefetches");
    inbox.wait(11);
}

void change_of_mind(const Place & place) {
    const File file(place.folder, "file", 4 * MIB);
    std::atomic<int> begun(0);
    Inbox inbox;
    const auto reader = open_reader(place, { file.path }, inbox, 2, [&](int32_t, int64_t, int64_t) { return ++begun, 50000; });
    std::vector<Target> targets;
    for (int i = 0; i < 5; ++i) {
        targets.emplace_back(i * 100 * KIB, 100 * KIB); // two pieces
        submit(*reader, { targets.back().read(i, false) });
    }
    wait_until(begun, 1);
    expect(!reader->withdraw(0), "withdrew a read that had begun");
    expect(reader->withdraw(3), "did not withdraw a queued read");
    expect(!reader->withdraw(3), "withdrew a read twice");
    expect(!reader->withdraw(77), "withdrew a read that never was");
    reader->promote(3);
    reader->promote(0); // begun: its second piece is demanded now
    reader->promote(4);
    inbox.wait(4);
    std::this_thread::sleep_for(10ms);
    expect(inbox.order().size() == 4 && inbox.error(3) == "not done", "a withdrawn read was done");
    expect(inbox.place(4) < inbox.place(1), "a promoted read was done after one that was not");
    for (const int i : { 0, 1, 2, 4 }) {
        expect(inbox.error(i).empty() && targets[i].holds(file), "read " + std::to_string(i) + ": " + inbox.error(i));
    }
    reader->promote(4); // done: nothing happens
    submit(*reader, { targets[3].read(3) });
    inbox.wait(5);
    expect(targets[3].holds(file), "a read submitted again after it was withdrawn");
}

void cut_while_open(const Place & place) {
    const File file(place.folder, "cut", MIB), other(place.folder, "other", MIB);
    Inbox inbox;
    const auto reader = open_reader(place, { file.path, other.path }, inbox);
    expect(truncate(file.path.c_str(), 300 * KIB + 100) == 0, "truncate");
    const Target half(200 * KIB, 200 * KIB), past(800 * KIB + 1, 1000), before(0, 4096), fine(0, MIB);
    submit(*reader, { half.read(0), past.read(1), before.read(2), fine.read(3, true, 1) });
    inbox.wait(4);
    const std::string cut = "the file was cut short";
    expect(inbox.error(0) == file.path + ": 102,300 bytes missing at 307,300: " + cut, inbox.error(0));
    expect(inbox.error(1) == file.path + ": 1,000 bytes missing at 819,201: " + cut, inbox.error(1));
    expect(inbox.error(2) == file.path + ": was changed while it was in use", inbox.error(2));
    expect(inbox.error(3).empty() && fine.holds(other), "another file: " + inbox.error(3));
}

void changed_while_open(const Place & place) {
    const File file(place.folder, "changed", MIB);
    const timespec past[] = { { 1000000000, 0 }, { 1000000000, 0 } }; // the clock of files ticks slowly, exFAT's every 2 s
    expect(utimensat(AT_FDCWD, file.path.c_str(), past, 0) == 0, "utimensat");
    Inbox inbox;
    const auto reader = open_reader(place, { file.path }, inbox);
    const Target first(0, 4096), second(0, 4096);
    submit(*reader, { first.read(0) });
    inbox.wait(1);
    expect(inbox.error(0).empty(), inbox.error(0));
    std::fstream(file.path, std::ios::binary | std::ios::in | std::ios::out).write("other", 5);
    submit(*reader, { second.read(1) });
    inbox.wait(2);
    expect(inbox.error(1) == file.path + ": was changed while it was in use", inbox.error(1));
}

void failures(const Place & place) {
    const File file(place.folder, "file", 4 * MIB);
    Inbox inbox;
    const auto reader = open_reader(place, { file.path }, inbox, 4, [](int32_t, int64_t offset, int64_t) -> int64_t {
        return offset == MIB || offset == MIB + 128 * KIB ? -EIO : offset == 0 ? -EINTR : 0;
    });
    const Target bad(MIB - 128 * KIB, 2 * MIB), good(3 * MIB, MIB), other(0, 10);
    submit(*reader, { bad.read(0), good.read(1), other.read(2) });
    inbox.wait(3);
    std::this_thread::sleep_for(10ms);
    expect(inbox.order().size() == 3, "a read with two faults was done more than once");
    expect(inbox.error(0) == file.path + ": reading 65,536 bytes at 1,048,576: Input/output error", inbox.error(0));
    expect(inbox.error(1).empty() && good.holds(file), "a read beside the fault: " + inbox.error(1));
    expect(contains(inbox.error(2), "Interrupted system call"), inbox.error(2));
}

void many_threads(const Place & place) {
    constexpr int THREADS = 8, EACH = 40;
    const File file(place.folder, "file", 8 * MIB + 5);
    Inbox inbox;
    const auto reader = open_reader(place, { file.path }, inbox);
    std::vector<std::vector<Target>> targets(THREADS);
    std::vector<std::thread> threads;
    for (int t = 0; t < THREADS; ++t) {
        threads.emplace_back([&, t] {
            std::mt19937 generator(t);
            for (int i = 0; i < EACH; ++i) {
                targets[t].emplace_back(generator() % (8 * MIB - 100 * KIB), 1 + generator() % (100 * KIB));
                submit(*reader, { targets[t].back().read(t * EACH + i, i % 2) });
                reader->promote(generator() % (THREADS * EACH));
            }
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    inbox.wait(THREADS * EACH);
    for (int i = 0; i < THREADS * EACH; ++i) {
        expect(inbox.error(i).empty() && targets[i / EACH][i % EACH].holds(file), "read " + std::to_string(i) + ": " + inbox.error(i));
    }
}

// Who attends waits or looks; nobody else has to.
void attended(const Place & place) {
    constexpr size_t N = 40, WAITERS = 4;
    const File file(place.folder, "file", 8 * MIB + 5);
    Inbox inbox;
    const auto reader = open_reader(place, { file.path }, inbox);
    std::vector<Target> targets;
    std::vector<Read>   reads;
    for (size_t i = 0; i < N; ++i) {
        targets.emplace_back(i * 200 * KIB + 17, 200 * KIB); // four pieces: far more than may be in flight
        reads.push_back(targets.back().read(i, i % 4 != 3));
    }
    reader->attend(true);
    submit(*reader, reads);
    std::vector<std::thread> waiters;
    for (size_t w = 0; w < WAITERS; ++w) {
        waiters.emplace_back([&, w] {
            for (size_t i = w; i < N; i += WAITERS) {
                reader->wait_until([&] { return inbox.error(i) != "not done"; });
            }
        });
    }
    for (std::thread & waiter : waiters) {
        waiter.join();
    }
    for (size_t i = 0; i < N; ++i) {
        expect(inbox.error(i).empty() && targets[i].holds(file), "read " + std::to_string(i) + ": " + inbox.error(i));
    }
    reader->wait_until([] { return true; }); // nothing to wait for

    const auto end = std::chrono::steady_clock::now() + PATIENCE;
    submit(*reader, { targets[0].read(100), targets[1].read(101, false) });
    while (inbox.order().size() < N + 2 && std::chrono::steady_clock::now() < end) {
        reader->look();
        std::this_thread::yield();
    }
    expect(inbox.order().size() == N + 2, "looking brings nothing");

    submit(*reader, { targets[2].read(102), targets[3].read(103, false) });
    reader->attend(false); // from now on others see to them
    inbox.wait(N + 4);
    submit(*reader, { targets[4].read(104) });
    inbox.wait(N + 5);
}

// A waiting thread goes on when reads fail or are late, too.
void attended_in_trouble(const Place & place) {
    const File file(place.folder, "file", 4 * MIB);
    Inbox inbox;
    const Target bad(0, 10), late(512 * KIB, 300 * KIB), good(2 * MIB, MIB);
    const auto reader = open_reader(place, { file.path }, inbox, 4, [](int32_t, int64_t offset, int64_t) -> int64_t {
        return offset == 0 ? -EIO : offset < MIB ? 3000 : 0;
    });
    reader->attend(true);
    for (const Read & read : { bad.read(0), late.read(1), good.read(2) }) {
        submit(*reader, { read });
        reader->wait_until([&] { return inbox.error(read.tag) != "not done"; });
    }
    expect(contains(inbox.error(0), "Input/output error"), inbox.error(0));
    expect(inbox.error(1).empty() && late.holds(file) && inbox.error(2).empty() && good.holds(file), "bytes");
    submit(*reader, { late.read(3) }); // and nobody waits until the end
}

// `done` submits the next read, as one who waits for it may.
void from_done(const Place & place) {
    constexpr int CHAIN = 200;
    const File file(place.folder, "file", MIB);
    const Target target(12345, 20000);
    Inbox inbox;
    ReaderParams params;
    params.files  = { file.path };
    params.method = place.method;
    std::atomic<Reader *> known(nullptr);
    const auto reader = Reader::open(params, [&](uint64_t tag, const std::string & error) {
        if (tag + 1 < CHAIN) {
            submit(*known.load(), { target.read(tag + 1, tag % 2) });
        }
        inbox.put(tag, error);
    });
    known = reader.get();
    submit(*reader, { target.read(0) });
    inbox.wait(CHAIN);
    expect(target.holds(file), "bytes");
}

void closed_early(const Place & place) {
    const File file(place.folder, "file", 8 * MIB);
    for (const int delay : { 0, 2000 }) {
        Inbox inbox;
        {
            std::vector<Target> targets;
            std::vector<Read> reads;
            for (int i = 0; i < 100; ++i) {
                targets.emplace_back(i * 64 * KIB + 1, 70 * KIB);
                reads.push_back(targets.back().read(i, i % 2));
            }
            const auto reader = open_reader(place, { file.path }, inbox, 8, [=](int32_t, int64_t, int64_t) { return delay; });
            submit(*reader, reads);
            std::this_thread::sleep_for(1ms);
        } // first the reader goes, then the memory it reads to
        const size_t done = inbox.order().size();
        std::this_thread::sleep_for(10ms);
        expect(inbox.order().size() == done, "`done` was called after the reader was gone");
        expect(delay == 0 || done < 100, "all reads were done, none dropped");
    }
    Inbox inbox;
    open_reader(place, { file.path }, inbox); // nothing to do at all
}

// --- cases that are the same for all methods

// Makes a system call fail for this thread and those it starts; false when the kernel cannot.
bool forbid(uint32_t call) {
    sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const sock_fprog program{ 4, steps };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Containers forbid io_uring, all of it or the call that begins a read.
void uring_forbidden(const std::string & folder) {
    const File file(folder, "file", MIB);
    for (const uint32_t call : { 425, 426 }) {
        std::thread([&] {
            if (!forbid(call)) {
                std::printf("  seccomp is not to be had here\n");
                return;
            }
            const Target target(5000, 500 * KIB);
            Inbox inbox;
            const auto reader = open_reader({ folder, Method::Uring }, { file.path }, inbox);
            expect(reader->method() == Method::Direct || reader->method() == Method::Buffered, reader->reason());
            expect(contains(reader->reason(), "io_uring is refused (Operation not permitted)") ||
                   reader->method() == Method::Buffered, reader->reason());
            submit(*reader, { target.read(1) });
            inbox.wait(1);
            expect(inbox.error(1).empty() && target.holds(file), "bytes without io_uring");
        }).join();
    }
}

// Reads as told: at once, late, wrong or not at all.
struct Pretender : Reader {
    const File & file;
    s2::Done     done;
    Method       acts;
    Method       bad;
    std::string  how;

    Pretender(const File & file_, s2::Done done_, Method acts_, Method bad_, std::string how_)
        : file(file_), done(std::move(done_)), acts(acts_), bad(bad_), how(std::move(how_)) {}

    void submit(const Read * reads, size_t n) override {
        for (const Read * read = reads; read < reads + n; ++read) {
            std::memcpy(read->to, file.bytes.data() + read->offset, read->bytes);
            const bool last = read == reads + n - 1; // the others are right
            if (acts == bad && last && how == "wrong") {
                read->to[read->bytes - 1] ^= 1;
            }
            if (acts != bad || how == "slow") {
                std::this_thread::sleep_for(acts == bad ? 4ms : 1ms);
            }
            done(read->tag, acts == bad && last && how == "fails" ? "it failed" : "");
        }
    }
    void promote(uint64_t) override {}
    bool withdraw(uint64_t) override { return false; }
    void wait_until(const std::function<bool()> &) override {} // all is read when submit() returns
    Method method() const override { return acts; }
    std::string reason() const override { return ""; }
};

// io_uring with O_DIRECT would be preferred, but it is slow, or fast and wrong.
void probe_decides(const std::string & folder) {
    const File file(folder, "file", 3 * MIB);
    const s2::Files files({ file.path });
    const auto chosen = [&](const std::string & how) {
        return s2::probe(files, [&](Method method, s2::Done done, std::string & why) -> std::unique_ptr<Reader> {
            if (method == Method::UringBuffered) {
                why = "not here";
                return nullptr;
            }
            return std::make_unique<Pretender>(file, done, method, Method::Uring, how);
        });
    };
    const auto good = chosen("fast"), slow = chosen("slow"), wrong = chosen("wrong"), fails = chosen("fails");
    expect(good.method == Method::Uring, good.reason);
    expect(contains(good.reason, "io_uring with O_DIRECT: ") && contains(good.reason, " MB/s against "), good.reason);
    expect(contains(good.reason, "; not here"), good.reason);
    expect(slow.method != Method::Uring, slow.reason);
    expect(wrong.method != Method::Uring && contains(wrong.reason, "io_uring with O_DIRECT gave other bytes"), wrong.reason);
    expect(fails.method != Method::Uring && contains(fails.reason, "it failed"), fails.reason);
}

void probe_without_bytes(const std::string & folder) {
    const File empty(folder, "empty", 0);
    Inbox inbox;
    const auto reader = open_reader({ folder, Method::Auto }, { empty.path, empty.path }, inbox);
    expect(reader->method() == Method::Buffered, reader->reason());
}

struct Case {
    const char * name;
    void (*run)(const Place &);
};

constexpr Case CASES[] = {
    { "every byte", every_byte },         { "small files", small_files },       { "missing file", missing_file },
    { "demand first", demand_first },     { "half for prefetch", half_for_prefetch },
    { "change of mind", change_of_mind }, { "cut while open", cut_while_open }, { "changed while open", changed_while_open },
    { "failures", failures },             { "many threads", many_threads },     { "from done", from_done },
    { "closed early", closed_early },     { "attended", attended },             { "attended in trouble", attended_in_trouble },
};

struct CommonCase {
    const char * name;
    void (*run)(const std::string & folder);
};

constexpr CommonCase COMMON_CASES[] = {
    { "io_uring forbidden", uring_forbidden },
    { "probe decides", probe_decides },
    { "probe without bytes", probe_without_bytes },
};

template <class Run> void check(const char * name, Run run) {
    const int before = n_wrong;
    const auto start = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    std::printf("  %-20s %s %5.0f ms\n", name, n_wrong == before ? "right" : "WRONG", taken.count());
    std::fflush(stdout);
}

// What the folder gives when this way is asked for.
std::string used_instead(const Place & place) {
    const File file(place.folder, "probe", 3 * MIB);
    Inbox inbox;
    const auto reader = open_reader(place, { file.path }, inbox);
    expect(reader->method() != Method::Auto, "the method in use is a question");
    return std::string(method_name(reader->method())) + " (" + reader->reason() + ")";
}

} // namespace

int main(int argc, char ** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "reader_check FOLDER [METHOD...]\n");
        return 2;
    }
    const std::vector<std::string> asked(argv + 2, argv + argc);
    for (const Method method : METHODS) {
        const char * name = method_name(method);
        if (!asked.empty() && std::find(asked.begin(), asked.end(), name) == asked.end()) {
            continue;
        }
        const Place place{ argv[1], method };
        std::printf("%s: %s\n", name, used_instead(place).c_str());
        for (const Case & test : CASES) {
            check(test.name, [&] { test.run(place); });
        }
    }
    std::printf("all:\n");
    for (const CommonCase & test : COMMON_CASES) {
        check(test.name, [&] { test.run(argv[1]); });
    }
    return n_wrong ? 1 : 0;
}
