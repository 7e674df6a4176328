#pragma once

// What a kernel gets and which kernels there are.

#include "s2-rows.h"

#include "ggml.h"

#include <cstdint>
#include <cstring>

namespace s2 {

// How a row of activations lies before the kernels. F32 rows stay where they are; the others are quantised to 8 bits
// and laid out so that a kernel converts nothing per column: first the bytes, then their scales.
enum class Activation {
    F32,
    Q8,    // Scale32 per 32
    Q8x4,  // Scale128 per 128; the bytes of each four blocks lie as 16 of every block, then the other 16
    Q8_K,  // Scale256 per 256
    Own,   // as the type's own dot product in ggml wants it
};

struct Scale32 {
    float d;
    union {
        int32_t excess;   // -offset * sum of the bytes: what unsigned codes count too much
        float   minimum;  // d * sum of the bytes
    };
};

// Of four blocks; behind a row's end all is zero.
struct Scale128 {
    float d[4];
    float rest[4];  // d * excess, or minimum
};

struct Scale256 {
    float   d;
    int16_t sums[16];  // of 16 bytes each
};

// The six-bit scales and minimums of Q4_K and Q5_K: of one column's eight runs of 32, or of one run in eight repacked
// columns.
struct SixBits {
    uint8_t scales[8], minimums[8];

    explicit SixBits(const uint8_t * packed) {
        uint32_t x[3];
        memcpy(x, packed, 12);
        const uint32_t s[2] = { x[0] & 0x3f3f3f3f, (x[2] & 0x0f0f0f0f) | ((x[0] >> 2) & 0x30303030) };
        const uint32_t m[2] = { x[1] & 0x3f3f3f3f, ((x[2] >> 4) & 0x0f0f0f0f) | ((x[1] >> 2) & 0x30303030) };
        memcpy(scales, s, 8);
        memcpy(minimums, m, 8);
    }
};

// Kernels hold one pointer per row: more would not fit the registers.
using Row = const char *;

static inline const int8_t *   bytes_of(Row row) { return (const int8_t *) row; }
static inline const float *    floats_of(Row row) { return (const float *) row; }
static inline const Scale32 *  scales_32(Row row, int64_t k) { return (const Scale32 *) (row + k); }
static inline const Scale128 * scales_128(Row row, int64_t k) { return (const Scale128 *) (row + (k + 127) / 128 * 128); }
static inline const Scale256 * scales_256(Row row, int64_t k) { return (const Scale256 *) (row + k); }

// Columns [first, last) of rows' products with the weights, for as many rows as the kernel was made for.
struct Job {
    int64_t         k;             // length of a row
    const char *    weights;
    size_t          column_bytes;  // of one output column's weights
    int64_t         first, last;
    const Row *     rows;
    float * const * out;           // per row: its first column
    ggml_type       type;          // of the weights
    const char *    end;           // of the weights
};

using Kernel = void (*)(const Job &);

// Rows per call: as many accumulators as the registers hold.
#if defined(__AVX512VL__) || defined(__aarch64__)
constexpr int KERNEL_ROWS = 8;
#else
constexpr int KERNEL_ROWS = 4;
#endif

struct Family {
    Activation activation;
    int        offset;   // of the codes, which are unsigned where the processor wants that
    bool       minimum;  // whether scales hold `minimum`, not `excess`
    int        block;    // a row's length is a multiple of this
    Kernel     kernels[KERNEL_ROWS];  // by rows - 1
};

// Null when there are none for this type and layout on this processor.
const Family * plain_family(ggml_type type);
const Family * avx512_family(ggml_type type);  // plain ones, four blocks at a time
const Family * avx2_interleaved_family(ggml_type type, s2_layout layout);
const Family * neon_interleaved_family(ggml_type type, s2_layout layout);

// {kernel<1>, kernel<2>, …}
#define S2_KERNELS_4(kernel, ...) kernel<__VA_ARGS__, 1>, kernel<__VA_ARGS__, 2>, kernel<__VA_ARGS__, 3>, kernel<__VA_ARGS__, 4>
#if defined(__AVX512VL__) || defined(__aarch64__)
#define S2_KERNELS(kernel, ...) \
    { S2_KERNELS_4(kernel, __VA_ARGS__), kernel<__VA_ARGS__, 5>, kernel<__VA_ARGS__, 6>, kernel<__VA_ARGS__, 7>, kernel<__VA_ARGS__, 8> }
#else
#define S2_KERNELS(kernel, ...) { S2_KERNELS_4(kernel, __VA_ARGS__) }
#endif

} // namespace s2
