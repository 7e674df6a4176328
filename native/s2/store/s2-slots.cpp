#include "s2-slots.h"

#include <algorithm>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace s2 {
namespace {

// A slot begins and ends with a page of this machine, or giving it back would take a part of its neighbours.
int64_t in_pages_of_here(int64_t bytes) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

} // namespace

Slots::Slots(int64_t least_bytes, int32_t n) : bytes(in_pages_of_here(least_bytes)), n_total(n) {
    void * mapped = mmap(nullptr, bytes * n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        throw std::bad_alloc();
    }
    base = (char *) mapped;
    // Reads past the page cache pin every page of where they go, and kernels walk all of it: with huge pages a third of
    // the time of a pass goes away. Slots in use lie side by side from the start, so that one page at the end is the
    // most that is held beyond them; what is given back from within is free once the system wants it.
    madvise(base, bytes * n, MADV_HUGEPAGE);
    bare.reserve(n);
    for (int32_t i = n - 1; i >= 0; --i) {
        bare.push_back(i);
    }
}

Slots::~Slots() { munmap(base, bytes * n_total); }

void Slots::set_limit(int32_t n) {
    allowed = std::min(n, n_total);
    while (used + (int32_t) backed.size() > allowed && !backed.empty()) {
        give_back(backed.back());
        backed.pop_back();
    }
}

int32_t Slots::take() {
    if (used >= allowed) {
        return -1;
    }
    std::vector<int32_t> & from = backed.empty() ? bare : backed;
    const int32_t slot = from.back();
    from.pop_back();
    ++used;
    return slot;
}

void Slots::release(int32_t slot) {
    --used;
    if (used + (int32_t) backed.size() < allowed) {
        backed.push_back(slot);
    } else {
        give_back(slot);
    }
}

void Slots::give_back(int32_t slot) {
    madvise(at(slot), bytes, MADV_DONTNEED);
    bare.push_back(slot);
}

} // namespace s2
