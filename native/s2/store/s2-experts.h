#pragma once

// Where the experts of one tensor lie while they are multiplied. Kernels ask here instead of computing an address.

#include <cstdint>

namespace s2 {

// One expert that a product needs, and which rows of the pass need it.
struct Wanted {
    int32_t  expert;
    int32_t  n_rows;
    uint32_t rows; // bit i: row i of the pass; all bits in passes of more than 32 rows
};

class Experts {
  public:
    virtual ~Experts() = default;

    // The product begins; one thread calls it before any may go on. `wanted` are distinct; on return they stand in the
    // order in which they are best multiplied: those in memory first. The pass has `n_tokens` rows.
    virtual void begin(Wanted * wanted, int32_t n, int32_t n_tokens) = 0;

    // The same thread again, while others multiply: time to think ahead.
    virtual void begun() {}

    // The expert's weights, waited for if need be; null when they could not be read. `n_threads` share the product.
    virtual const char * wait(int32_t expert, int32_t n_threads) = 0;

    // All threads are through with the expert; called in about the order of `begin`.
    virtual void done(int32_t expert) = 0;
};

} // namespace s2
