#pragma once

// Matrix products of narrow passes: up to S2_ROWS_MAX tokens against weights that are read once for all of them.
//
// Each row is computed exactly as if it were alone, whatever the rows and threads, so that verifying a drafted
// token yields the bits of plain decode. Integer sums are exact; floating-point sums keep one order per row.
// See native/patches/README.md, 0006.

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;
struct ggml_tensor;

enum { S2_ROWS_MAX = 32 };

// How the weights lie in memory: as in the file, or in ggml's repacked blocks, which interleave four or eight output
// columns by four or eight bytes. Named columns x bytes. Kernels know no other layout.
enum s2_layout { S2_LAYOUT_PLAIN, S2_LAYOUT_4X4, S2_LAYOUT_4X8, S2_LAYOUT_8X4, S2_LAYOUT_8X8, S2_LAYOUT_OTHER };

static inline enum s2_layout s2_layout_of(int columns, int bytes) {
    switch (10 * columns + bytes) {
        case 44: return S2_LAYOUT_4X4;
        case 48: return S2_LAYOUT_4X8;
        case 84: return S2_LAYOUT_8X4;
        case 88: return S2_LAYOUT_8X8;
        default: return S2_LAYOUT_OTHER;
    }
}

// Computes a MUL_MAT or MUL_MAT_ID of a narrow pass; every thread of the pass calls it. False when no kernel fits,
// and then nothing was touched: the answer depends on types and shapes, never on the number of rows or threads.
bool s2_rows_forward(const struct ggml_compute_params * params, struct ggml_tensor * dst, enum s2_layout layout);

// Has `between` called by one thread of a narrow pass before each of its products with dense weights: a moment to look after
// something else. Null: nothing.
void s2_rows_set_between(void (*between)(void));

// Bytes of work buffer that s2_rows_forward needs for this node; 0 for other nodes.
size_t s2_rows_work_size(const struct ggml_tensor * node);

#ifdef __cplusplus
}

namespace s2 {
class Experts;
}

// Computes a MUL_MAT_ID of any width, the experts' weights lying where `experts` says, as in the file. The same kernels
// for every width and type, so the bits depend neither on the width nor on what is in memory.
void s2_rows_forward_experts(const ggml_compute_params * params, ggml_tensor * dst, s2::Experts & experts);

size_t s2_rows_work_size_experts(const ggml_tensor * node);
#endif
