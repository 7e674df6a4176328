#pragma once

// Flash attention for narrow passes, included by ggml-cpu/ops.cpp behind the kernel it calls.
//
// ggml splits the cache among threads for one row and not for several, so a row's bits depend on its company.
// Here the cache is always split every S2_ATTN_CHUNK cells and the partial sums are merged in order, in F32:
// one thread does that for a row and head, or several share the chunks, and the bits are the same.

#include "s2-attention-size.h"

// Both [M, S, VKQ[dv]]: the largest KQ value, the sum of the weights, the weighted sum of V. Adds part to total.
// Not inlined: one compiled form, so that no caller contracts its multiplications and additions differently.
static void __attribute__((noinline)) s2_attn_merge(float * total, const float * part, int64_t dv) {
    if (part[1] == 0.0f) {
        return; // every cell of the chunk is masked
    }
    const float m         = fmaxf(total[0], part[0]);
    const float scale_old = expf(total[0] - m);
    const float scale_new = expf(part[0] - m);
    for (int64_t d = 0; d < dv; ++d) {
        total[2 + d] = total[2 + d] * scale_old + part[2 + d] * scale_new;
    }
    total[0] = m;
    total[1] = total[1] * scale_old + part[1] * scale_new;
}

static void s2_attn_clear(float * total, int64_t dv) {
    total[0] = -INFINITY;
    memset(total + 1, 0, (size_t) (1 + dv) * sizeof(float));
}

// Row ir of [head][row] goes to its place in dst, which is permuted (0, 2, 1, 3).
static void s2_attn_write(ggml_tensor * dst, float * total, int64_t ir, int64_t n_rows, int64_t dv) {
    const int64_t head = ir / n_rows;
    const int64_t row  = ir % n_rows;
    ggml_vec_scale_f32(dv, total + 2, total[1] == 0.0f ? 0.0f : 1.0f / total[1]);
    memcpy((char *) dst->data + (head + row * dst->ne[1]) * dst->nb[1], total + 2, dst->nb[1]);
}

static void s2_attn_narrow(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * q = dst->src[0];
    const ggml_tensor * k = dst->src[1];

    const int64_t dv       = dst->src[2]->ne[0];
    const int64_t n_rows   = q->ne[1];
    const int64_t n_cells  = k->ne[1];
    const int64_t n_chunks = s2_attn_n_chunks(n_cells);
    const int64_t n_ir     = n_rows * q->ne[2]; // rows of all heads
    const int64_t size     = 2 + dv;
    const int64_t ith      = params->ith;
    const int64_t nth      = params->nth;

    float * mine     = (float *) params->wdata + nth * (k->ne[0] + 2 * dv + CACHE_LINE_SIZE_F32)
                     + ith * s2_attn_thread_floats(dv);
    float * total    = mine + size;
    float * partials = mine + (nth - ith) * s2_attn_thread_floats(dv); // [n_ir][n_chunks] of one row

    auto chunk = [&](int64_t ir, int64_t c, float * part) {
        const int64_t end = MIN((c + 1) * S2_ATTN_CHUNK, n_cells);
        // the kernel adds ir times its stride to what it is given
        ggml_compute_forward_flash_attn_ext_f16_one_chunk(params, dst, ir, ir + 1, c * S2_ATTN_CHUNK, end, part, 0);
    };

    if (n_rows > 1) {
        for (int64_t ir = ith; ir < n_ir; ir += nth) {
            s2_attn_clear(total, dv);
            for (int64_t c = 0; c < n_chunks; ++c) {
                chunk(ir, c, mine);
                s2_attn_merge(total, mine, dv);
            }
            s2_attn_write(dst, total, ir, n_rows, dv);
        }
        return;
    }

    // One row has too few heads to go round evenly: the threads share its chunks.
    const int64_t n_units = n_ir * n_chunks;
    for (int64_t u = n_units * ith / nth; u < n_units * (ith + 1) / nth; ++u) {
        chunk(u / n_chunks, u % n_chunks, partials + u * size);
    }
    ggml_barrier(params->threadpool);
    for (int64_t ir = ith; ir < n_ir; ir += nth) {
        s2_attn_clear(total, dv);
        for (int64_t c = 0; c < n_chunks; ++c) {
            s2_attn_merge(total, partials + (ir * n_chunks + c) * size, dv);
        }
        s2_attn_write(dst, total, ir, n_rows, dv);
    }
}
