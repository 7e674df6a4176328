#pragma once

// The few vector operations the kernels are written in, for AVX2 (with or without VNNI) and NEON.
//
// Sums of integers are exact in any order, so the instruction sets may differ there. What is added as floating point
// is written as explicit fused multiply-adds in a fixed order; this code is compiled with -ffp-contract=off.

#include "s2-rows-kernel.h"

#include "ggml-impl.h"

#include <cmath>
#include <cstdint>
#include <cstring>

// Loops over rows: their sums must stay in registers, which the compiler gives up from eight rows on.
#define S2_UNROLL _Pragma("GCC unroll 8")

namespace s2 {

// Work on many rows hides the next weights from the processor's own prefetcher: it looks too short a way ahead.
constexpr int64_t AHEAD_BYTES = 4096;

template <int64_t bytes> static inline void prefetch(const void * p) {
    S2_UNROLL
    for (int64_t at = 0; at < bytes; at += 64) {
        __builtin_prefetch((const char *) p + at);
    }
}

// How far ahead to prefetch while a column is multiplied. Not beyond the weights: where no memory is behind them, each
// attempt walks the page tables in vain, which took a fifth of the time of small experts.
static inline int64_t ahead_of(const Job & job, int64_t column) {
    return job.weights + (column + 1) * job.column_bytes + AHEAD_BYTES <= job.end ? AHEAD_BYTES : 0;
}

} // namespace s2

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define S2_SIMD 1
#include <immintrin.h>

namespace s2 {

using Codes  = __m256i;  // 32 unsigned codes
using Vec    = __m256;
using Ints   = __m256i;  // sums of neighbouring products
using Scales = __m256i;  // one per code pair

constexpr int LANES = 8;
// Codes are unsigned here: the processor multiplies unsigned by signed bytes.
constexpr bool UNSIGNED_CODES = true;

static inline Vec  zero() { return _mm256_setzero_ps(); }
static inline Vec  splat(float x) { return _mm256_set1_ps(x); }
static inline Vec  load(const float * p) { return _mm256_loadu_ps(p); }
static inline Vec  load_half(const ggml_fp16_t * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
static inline Vec  mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
static inline Vec  fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline Vec  fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
static inline Vec  to_float(Ints a) { return _mm256_cvtepi32_ps(a); }
static inline Ints no_ints() { return _mm256_setzero_si256(); }

static inline float sum(Vec a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    x = _mm_add_ss(x, _mm_movehdup_ps(x));
    return _mm_cvtss_f32(x);
}

// Starts a sum of integers at x.
static inline Ints start_at(int32_t x) { return _mm256_castsi128_si256(_mm_cvtsi32_si128(x)); }

static inline Codes load_codes(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }

// 16 bytes: low nibbles first, then high ones.
static inline Codes load_nibbles(const uint8_t * p) {
    const __m128i x = _mm_loadu_si128((const __m128i *) p);
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), _mm256_set1_epi8(0x0F));
}
static inline Codes low_nibbles(Codes x) { return _mm256_and_si256(x, _mm256_set1_epi8(0x0F)); }
static inline Codes high_nibbles(Codes x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
static inline Codes either(Codes a, Codes b) { return _mm256_or_si256(a, b); }

// Bits [shift, shift + 2) of every byte, moved to bits 4 and 5.
template <int shift> static inline Codes two_bits_at_4(Codes x) {
    const __m256i moved = shift <= 4 ? _mm256_slli_epi16(x, shift <= 4 ? 4 - shift : 0) : _mm256_srli_epi16(x, shift > 4 ? shift - 4 : 0);
    return _mm256_and_si256(moved, _mm256_set1_epi8(0x30));
}
// Bit `shift` of every byte, moved to bit 4.
template <int shift> static inline Codes one_bit_at_4(Codes x) {
    const __m256i moved = shift <= 4 ? _mm256_slli_epi16(x, shift <= 4 ? 4 - shift : 0) : _mm256_srli_epi16(x, shift > 4 ? shift - 4 : 0);
    return _mm256_and_si256(moved, _mm256_set1_epi8(0x10));
}
// 32 single bits, each as 0x10 in its byte.
static inline Codes spread_bits_at_4(const uint8_t * p) {
    uint32_t bits;
    memcpy(&bits, p, sizeof(bits));
    const __m256i which = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    const __m256i mask  = _mm256_set1_epi64x((int64_t) 0x8040201008040201);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int) bits), which);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, mask), mask), _mm256_set1_epi8(0x10));
}
static inline Codes look_up(Codes nibbles, const int8_t * table, int offset) {
    const __m128i values = _mm_add_epi8(_mm_loadu_si128((const __m128i *) table), _mm_set1_epi8((char) offset));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), nibbles);
}

// Unsigned codes that stand `offset` too high; signed ones as they are where the processor has no dpbusd, because
// its substitute saturates.
#if (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)
#define S2_VNNI 1
static inline Ints dpbusd(Ints acc, Codes u, __m256i s) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(acc, u, s);
#else
    return _mm256_dpbusd_avx_epi32(acc, u, s);
#endif
}
static inline Ints dpwssd(Ints acc, __m256i a, __m256i b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpwssd_epi32(acc, a, b);
#else
    return _mm256_dpwssd_avx_epi32(acc, a, b);
#endif
}
constexpr int BYTE_OFFSET = 128;
static inline Codes load_bytes(const int8_t * p) { return _mm256_xor_si256(load_codes(p), _mm256_set1_epi8((char) 0x80)); }
static inline Ints  dot_bytes(Ints acc, Codes bytes, __m256i y) { return dpbusd(acc, bytes, y); }
#else
static inline Ints dpwssd(Ints acc, __m256i a, __m256i b) { return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)); }
static inline Ints dpbusd(Ints acc, Codes u, __m256i s) { return dpwssd(acc, _mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)); }
constexpr int BYTE_OFFSET = 0;
static inline Codes load_bytes(const int8_t * p) { return load_codes(p); }
static inline Ints  dot_bytes(Ints acc, Codes bytes, __m256i y) {
    return dpbusd(acc, _mm256_sign_epi8(bytes, bytes), _mm256_sign_epi8(y, bytes));
}
#endif

// acc + codes * y; codes up to 127.
static inline Ints dot(Ints acc, Codes codes, const int8_t * y) { return dpbusd(acc, codes, load_codes(y)); }
// The same for what load_bytes made.
static inline Ints dot_bytes(Ints acc, Codes bytes, const int8_t * y) { return dot_bytes(acc, bytes, load_codes(y)); }

// One scale for the first 16 codes, one for the others.
static inline Scales scales_of(int16_t first, int16_t second) { return _mm256_set_m128i(_mm_set1_epi16(second), _mm_set1_epi16(first)); }
// acc + codes * y * scales; codes up to 63.
static inline Ints dot_scaled(Ints acc, Codes codes, const int8_t * y, Scales scales) {
    return dpwssd(acc, _mm256_maddubs_epi16(codes, load_codes(y)), scales);
}
// The sum of 16 products of bytes with 16-bit integers, over lanes.
static inline Ints dot_sums(const int8_t * a, const int16_t * b) {
    return _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *) a)), _mm256_loadu_si256((const __m256i *) b));
}
// a - b * 2^n
template <int n> static inline Ints minus_shifted(Ints a, Ints b) { return _mm256_sub_epi32(a, _mm256_slli_epi32(b, n)); }

} // namespace s2

#elif defined(__aarch64__) && defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
#define S2_SIMD 1
#include <arm_neon.h>

namespace s2 {

using Codes  = int8x16x2_t;  // 32 signed codes
using Vec    = float32x4_t;
using Ints   = int32x4_t;
struct Scales { int32_t first, second; };

constexpr int LANES = 4;
constexpr bool UNSIGNED_CODES = false;

static inline Vec  zero() { return vdupq_n_f32(0.0f); }
static inline Vec  splat(float x) { return vdupq_n_f32(x); }
static inline Vec  load(const float * p) { return vld1q_f32(p); }
static inline Vec  load_half(const ggml_fp16_t * p) { return vcvt_f32_f16(vld1_f16((const __fp16 *) p)); }
static inline Vec  mul(Vec a, Vec b) { return vmulq_f32(a, b); }
static inline Vec  fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
static inline Vec  fnma(Vec a, Vec b, Vec c) { return vfmsq_f32(c, a, b); }
static inline Vec  to_float(Ints a) { return vcvtq_f32_s32(a); }
static inline Ints no_ints() { return vdupq_n_s32(0); }
static inline float sum(Vec a) { return vaddvq_f32(a); }
static inline Ints start_at(int32_t x) { return vsetq_lane_s32(x, vdupq_n_s32(0), 0); }

static inline Codes pair_of(uint8x16_t a, uint8x16_t b) { return { { vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b) } }; }
template <class F> static inline Codes each(Codes x, F f) {
    return pair_of(f(vreinterpretq_u8_s8(x.val[0])), f(vreinterpretq_u8_s8(x.val[1])));
}
static inline Codes load_codes(const void * p) { return { { vld1q_s8((const int8_t *) p), vld1q_s8((const int8_t *) p + 16) } }; }
static inline Codes load_nibbles(const uint8_t * p) {
    const uint8x16_t x = vld1q_u8(p);
    return pair_of(vandq_u8(x, vdupq_n_u8(0x0F)), vshrq_n_u8(x, 4));
}
static inline Codes low_nibbles(Codes x) { return each(x, [](uint8x16_t a) { return vandq_u8(a, vdupq_n_u8(0x0F)); }); }
static inline Codes high_nibbles(Codes x) { return each(x, [](uint8x16_t a) { return vshrq_n_u8(a, 4); }); }
static inline Codes either(Codes a, Codes b) { return { { vorrq_s8(a.val[0], b.val[0]), vorrq_s8(a.val[1], b.val[1]) } }; }
template <int shift> static inline Codes two_bits_at_4(Codes x) {
    return each(x, [](uint8x16_t a) { return vshlq_n_u8(vandq_u8(vshlq_u8(a, vdupq_n_s8(-shift)), vdupq_n_u8(3)), 4); });
}
template <int shift> static inline Codes one_bit_at_4(Codes x) {
    return each(x, [](uint8x16_t a) { return vshlq_n_u8(vandq_u8(vshlq_u8(a, vdupq_n_s8(-shift)), vdupq_n_u8(1)), 4); });
}
static inline Codes spread_bits_at_4(const uint8_t * p) {
    const uint8_t    masks[16] = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    const uint8x16_t mask      = vld1q_u8(masks);
    const uint8x16_t first     = vcombine_u8(vdup_n_u8(p[0]), vdup_n_u8(p[1]));
    const uint8x16_t second    = vcombine_u8(vdup_n_u8(p[2]), vdup_n_u8(p[3]));
    const uint8x16_t bit       = vdupq_n_u8(0x10);
    return pair_of(vandq_u8(vtstq_u8(first, mask), bit), vandq_u8(vtstq_u8(second, mask), bit));
}
static inline Codes look_up(Codes nibbles, const int8_t * table, int) {
    const int8x16_t values = vld1q_s8(table);
    return { { vqtbl1q_s8(values, vreinterpretq_u8_s8(nibbles.val[0])), vqtbl1q_s8(values, vreinterpretq_u8_s8(nibbles.val[1])) } };
}

constexpr int BYTE_OFFSET = 0;
static inline Codes load_bytes(const int8_t * p) { return load_codes(p); }
static inline Ints  dot(Ints acc, Codes codes, const int8_t * y) {
    return vdotq_s32(vdotq_s32(acc, codes.val[0], vld1q_s8(y)), codes.val[1], vld1q_s8(y + 16));
}
static inline Ints dot_bytes(Ints acc, Codes bytes, const int8_t * y) { return dot(acc, bytes, y); }

static inline Scales scales_of(int16_t first, int16_t second) { return { first, second }; }
static inline Ints   dot_scaled(Ints acc, Codes codes, const int8_t * y, Scales scales) {
    acc = vmlaq_n_s32(acc, vdotq_s32(no_ints(), codes.val[0], vld1q_s8(y)), scales.first);
    return vmlaq_n_s32(acc, vdotq_s32(no_ints(), codes.val[1], vld1q_s8(y + 16)), scales.second);
}
static inline Ints dot_sums(const int8_t * a, const int16_t * b) {
    const int8x16_t x = vld1q_s8(a);
    Ints total = no_ints();
    const int16x8_t halves[2] = { vmovl_s8(vget_low_s8(x)), vmovl_s8(vget_high_s8(x)) };
    for (int i = 0; i < 2; ++i) {
        const int16x8_t y = vld1q_s16(b + 8 * i);
        total = vmlal_s16(total, vget_low_s16(halves[i]), vget_low_s16(y));
        total = vmlal_s16(total, vget_high_s16(halves[i]), vget_high_s16(y));
    }
    return total;
}
template <int n> static inline Ints minus_shifted(Ints a, Ints b) { return vsubq_s32(a, vshlq_n_s32(b, n)); }

} // namespace s2

#endif
