#include "s2-ring.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <system_error>
#include <unistd.h>

namespace s2 {
namespace {

// The same numbers for every processor that Linux runs on, but for Alpha.
constexpr long SYS_SETUP = 425, SYS_ENTER = 426;

constexpr uint8_t  OP_READ             = 22;     // Linux 5.6
constexpr uint32_t FEATURE_SINGLE_MMAP = 1 << 0; // Linux 5.4
constexpr uint32_t FEATURE_NO_DROP     = 1 << 1; // Linux 5.5
constexpr off_t    OFFSET_RINGS        = 0;
constexpr off_t    OFFSET_SUBMISSIONS  = 0x10000000;

struct SubmissionOffsets {
    uint32_t head, tail, mask, entries, flags, dropped, order, reserved;
    uint64_t address;
};
struct CompletionOffsets {
    uint32_t head, tail, mask, entries, overflow, completions, flags, reserved;
    uint64_t address;
};
struct Params {
    uint32_t          n_submissions, n_completions, flags, cpu, idle, features, wq, reserved[3];
    SubmissionOffsets put;
    CompletionOffsets done;
};
static_assert(sizeof(Params) == 120, "as the kernel has it");

uint32_t load(const uint32_t * shared) {
    return __atomic_load_n(shared, __ATOMIC_ACQUIRE);
}
void store(uint32_t * shared, uint32_t value) {
    __atomic_store_n(shared, value, __ATOMIC_RELEASE);
}

} // namespace

struct Ring::Submission {
    uint8_t  op, flags;
    uint16_t priority;
    int32_t  fd;
    uint64_t offset, address;
    uint32_t bytes, read_flags;
    uint64_t name, unused[3];
};
struct Ring::Completion {
    uint64_t name;
    int32_t  result;
    uint32_t flags;
};

std::unique_ptr<Ring> Ring::open(int32_t depth, std::string & why) {
    static_assert(sizeof(Submission) == 64 && sizeof(Completion) == 16, "as the kernel has it");
    std::unique_ptr<Ring> ring(new Ring);
    int error = ring->set_up(depth);
    error = error ? error : ring->try_read();
    if (error) {
        why = "io_uring is refused (" + std::generic_category().message(error) + ")";
        return nullptr;
    }
    return ring;
}

int Ring::set_up(int32_t depth) {
    Params params{};
    fd_ = (int) syscall(SYS_SETUP, depth, &params);
    if (fd_ < 0) {
        return errno;
    }
    constexpr uint32_t needed = FEATURE_SINGLE_MMAP | FEATURE_NO_DROP;
    if ((params.features & needed) != needed) {
        return ENOSYS;
    }
    const size_t n_put  = params.put.order + params.n_submissions * sizeof(uint32_t);
    const size_t n_done = params.done.completions + params.n_completions * sizeof(Completion);
    const auto   map    = [this](size_t bytes, off_t offset) {
        return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, offset);
    };
    n_rings_ = n_put > n_done ? n_put : n_done;
    void * rings = map(n_rings_, OFFSET_RINGS);
    if (rings == MAP_FAILED) {
        return errno;
    }
    rings_ = (char *) rings;
    n_submissions_ = params.n_submissions * sizeof(Submission);
    void * submissions = map(n_submissions_, OFFSET_SUBMISSIONS);
    if (submissions == MAP_FAILED) {
        return errno;
    }
    submissions_ = (Submission *) submissions;

    const auto at = [this](uint32_t offset) { return (uint32_t *) (rings_ + offset); };
    put_head_  = at(params.put.head);
    put_tail_  = at(params.put.tail);
    put_mask_  = *at(params.put.mask);
    put_order_ = at(params.put.order);
    done_head_ = at(params.done.head);
    done_tail_ = at(params.done.tail);
    done_mask_ = *at(params.done.mask);
    done_      = (Completion *) at(params.done.completions);
    return 0;
}

Ring::~Ring() {
    if (submissions_) {
        munmap(submissions_, n_submissions_);
    }
    if (rings_) {
        munmap(rings_, n_rings_);
    }
    if (fd_ >= 0) {
        close(fd_);
    }
}

// A ring may be had where reads or the call that begins them are not.
int Ring::try_read() {
    const int zero = ::open("/dev/zero", O_RDONLY | O_CLOEXEC);
    if (zero < 0) {
        return errno;
    }
    char byte = 1;
    int error = 0;
    read(zero, &byte, 1, 0, 0);
    int entered;
    while ((entered = enter()) == -EINTR) {
    }
    if (entered < 0) {
        error = -entered;
    } else {
        pollfd ready{ fd_, POLLIN, 0 };
        while (reap([&](uint64_t, int32_t result) { error = result == 1 && byte == 0 ? 0 : result < 0 ? -result : EIO; }) == 0) {
            poll(&ready, 1, -1);
        }
    }
    close(zero);
    return error;
}

void Ring::read(int fd, char * to, uint32_t bytes, int64_t offset, uint64_t name) {
    const uint32_t tail  = *put_tail_;
    const uint32_t index = tail & put_mask_;
    Submission & submission = submissions_[index];
    submission         = Submission();
    submission.op      = OP_READ;
    submission.fd      = fd;
    submission.offset  = (uint64_t) offset;
    submission.address = (uint64_t) (uintptr_t) to;
    submission.bytes   = bytes;
    submission.name    = name;
    put_order_[index]  = index;
    store(put_tail_, tail + 1);
    ++n_put_;
}

int Ring::enter() {
    while (n_put_ > 0) {
        const long n = syscall(SYS_ENTER, fd_, n_put_, 0, 0, nullptr, 0);
        if (n < 0) {
            return -errno;
        }
        n_put_ -= (uint32_t) n;
        if (n == 0) {
            return -EAGAIN;
        }
    }
    return 0;
}

void Ring::take_back(const std::function<void(uint64_t name)> & each) {
    const uint32_t head = load(put_head_), tail = *put_tail_;
    store(put_tail_, head); // without a polling thread of its own the kernel looks in enter() only
    n_put_ = 0;
    for (uint32_t i = head; i != tail; ++i) {
        each(submissions_[put_order_[i & put_mask_]].name);
    }
}

size_t Ring::reap(const std::function<void(uint64_t name, int32_t result)> & each) {
    uint32_t head = *done_head_;
    const uint32_t tail = load(done_tail_);
    const size_t n = tail - head;
    for (; head != tail; ++head) {
        const Completion done = done_[head & done_mask_];
        each(done.name, done.result);
    }
    store(done_head_, head);
    return n;
}

} // namespace s2
