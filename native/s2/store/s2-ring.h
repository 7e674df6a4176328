#pragma once

// The kernel's io_uring, as much of it as reading files needs. Its interface is written down here, because the headers of
// the machine that compiles may be older than the kernel of the one that runs.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace s2 {

// Used by one thread at a time; one may poll fd() meanwhile.
class Ring {
  public:
    // For `depth` reads in flight. Null when the kernel has none for us, and `why` says what it said.
    static std::unique_ptr<Ring> open(int32_t depth, std::string & why);
    Ring(const Ring &) = delete;
    ~Ring();

    // Puts a read down for the next enter(); never more than `depth` that have not been reaped.
    void read(int fd, char * to, uint32_t bytes, int64_t offset, uint64_t name);
    // Gives what was put down to the kernel: 0, or a negative errno, when some of it may still lie here.
    int enter();
    // Takes back what the kernel has not accepted.
    void take_back(const std::function<void(uint64_t name)> & each);
    bool pending() const { return n_put_ > 0; }

    // The reads that are over, bytes read or a negative errno. How many there were.
    size_t reap(const std::function<void(uint64_t name, int32_t result)> & each);

    int fd() const { return fd_; } // readable while something is to be reaped

  private:
    struct Submission;
    struct Completion;

    int          fd_      = -1;
    char *       rings_   = nullptr; // shared with the kernel: both rings, and the submissions
    size_t       n_rings_ = 0;
    Submission * submissions_ = nullptr;
    size_t       n_submissions_ = 0; // bytes
    uint32_t     n_put_ = 0;

    uint32_t *   put_tail_ = nullptr; // ours, read by the kernel
    uint32_t *   put_head_ = nullptr; // the kernel's
    uint32_t *   put_order_ = nullptr;
    uint32_t     put_mask_ = 0;
    uint32_t *   done_head_ = nullptr; // ours
    uint32_t *   done_tail_ = nullptr; // the kernel's
    uint32_t     done_mask_ = 0;
    Completion * done_ = nullptr;

    Ring() = default;
    int  set_up(int32_t depth);
    int  try_read(); // 0 or an errno
};

} // namespace s2
