#pragma once

#include <stddef.h>
#include <stdint.h>

// Read by ggml-cpu.c, so plain C.

// Cells of the KV cache per partial sum. Fixed, so that the order of additions depends on nothing but the
// length of the cache: not on the threads, not on the rows of the pass.
#define S2_ATTN_CHUNK 256

// Floats one thread needs beside ggml's own scratch: a partial sum and the total, each [M, S, VKQ[DV]].
static inline int64_t s2_attn_thread_floats(int64_t dv) {
    return 2 * (2 + dv);
}

static inline int64_t s2_attn_n_chunks(int64_t n_cells) {
    return (n_cells + S2_ATTN_CHUNK - 1) / S2_ATTN_CHUNK;
}

// Bytes of work memory for narrow attention: scratch of each thread, and the partial sums of a one-row pass.
static inline size_t s2_attn_work_size(
        int64_t n_threads, int64_t scratch_floats, int64_t n_heads, int64_t n_cells, int64_t dv) {
    const int64_t partials = n_heads * s2_attn_n_chunks(n_cells) * (2 + dv);
    return sizeof(float) * (size_t) (n_threads * (scratch_floats + s2_attn_thread_floats(dv)) + partials);
}
