#pragma once

// Reads from the model's files into memory, many at a time. Knows files and bytes, nothing of experts.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace s2 {

// Reads are made of whole pages, so that the same request suits O_DIRECT: `to` has room for the bytes of
// [offset rounded down, offset + bytes rounded up) and is aligned to PAGE; the first byte asked for lands at
// to + offset % PAGE. The end of the last page may lie behind the end of the file.
struct Read {
    static constexpr int64_t PAGE = 4096;

    int32_t  file;
    int64_t  offset, bytes;
    char *   to;
    uint64_t tag;    // the caller's name for it; no other read has it until this one is done or withdrawn
    bool     demand; // before every read that is not
};

enum class Method { Auto, Buffered, Direct, Uring, UringBuffered };
const char * method_name(Method method); // one word

struct ReaderParams {
    std::vector<std::string> files;
    Method  method   = Method::Auto; // Auto: the fastest of those that a probe proves right; one that this machine
                                     // has not is replaced by the one most like it
    int32_t depth    = 16;           // requests in flight, of at most `piece` bytes each
    int64_t piece    = 512 << 10;    // longer reads are cut into these
    // For tests: called before each piece is given to the kernel with (file, offset, bytes); returns 0 to go on, a
    // negative errno to fail it, or a positive number of microseconds to hold its completion back. Several threads may
    // call it at once.
    std::function<int64_t(int32_t, int64_t, int64_t)> fault = nullptr;
};

class Reader {
  public:
    // `done` is called once for every read, from a thread of the reader or one in `wait_until` or `look`, with its tag and
    // an empty string, or what went wrong, naming the file ("/m/x.gguf: 4,096 bytes missing at 123: the file was cut short").
    // It may submit, promote and withdraw. Reads of one priority are begun in the order given; prefetches fill a quarter of
    // the depth at most. Throws std::runtime_error when a file cannot be opened. The probe of Method::Auto takes up to 0.3 s.
    static std::unique_ptr<Reader> open(ReaderParams params, std::function<void(uint64_t tag, const std::string & error)> done);
    virtual ~Reader(); // waits for what is in flight, drops what is queued without a call to `done`

    virtual void submit(const Read * reads, size_t n) = 0; // any thread; never blocks on the disk
    virtual void promote(uint64_t tag) = 0;  // what is left of a read becomes a demanded one, behind those there are
    virtual bool withdraw(uint64_t tag) = 0; // true: it was queued and will never be done; false: it has begun, or is done

    // Until `over` says so, which is asked again whenever reads were done. Where the way to read allows it, the thread looks
    // after the reads itself meanwhile, so that no other has to be woken. `over` may take the locks that `done` takes; the
    // caller holds none of them.
    virtual void wait_until(const std::function<bool()> & over) = 0;

    // Reports what is over by now, and begins what there is room for.
    virtual void look() {}

    // Who attends looks or waits before it needs anything. Until told otherwise the reader's own threads keep still, as long
    // as all that is demanded has begun.
    virtual void attend(bool) {}

    virtual Method      method() const = 0;
    virtual std::string reason() const = 0; // why this method, in one line, with the figures of the probe
};

} // namespace s2
