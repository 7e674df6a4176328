#pragma once

// Memory for experts of one size: a reservation cut into slots, of which as many are backed as the budget allows.

#include <cstdint>
#include <vector>

namespace s2 {

class Slots {
  public:
    // Reserves room for `n` slots of `least_bytes` each, in whole pages; nothing is backed yet. Throws std::bad_alloc.
    Slots(int64_t least_bytes, int32_t n);
    ~Slots();
    Slots(const Slots &) = delete;
    Slots & operator=(const Slots &) = delete;

    int64_t slot_bytes() const { return bytes; }
    int32_t total() const { return n_total; }
    int32_t limit() const { return allowed; }
    int32_t in_use() const { return used; }
    bool    over() const { return used > allowed; }

    // How many may be in use from now on. Those in use beyond it go back as they are released.
    void set_limit(int32_t n);

    int32_t take();            // -1: none is free
    void    release(int32_t slot);
    char *  at(int32_t slot) const { return base + slot * bytes; }

  private:
    const int64_t        bytes;
    const int32_t        n_total;
    int32_t              allowed = 0, used = 0;
    char *               base = nullptr;
    std::vector<int32_t> backed; // free, pages in place
    std::vector<int32_t> bare;   // free, no pages

    void give_back(int32_t slot);
};

} // namespace s2
