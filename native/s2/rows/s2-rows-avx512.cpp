// Kernels over weights as they lie in the file, four blocks of 32 at a time: a vector holds 16 codes of each, so that
// one conversion and one scaling serve all four.

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

#include "s2-rows-kernel.h"
#include "s2-simd.h"

#include "ggml-cpu-impl.h"
#include "simd-mappings.h"

#include <algorithm>

#if defined(S2_SIMD) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VNNI__)

namespace s2 {
namespace {

#define S2_OF(w, field) ((w).GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.field)

// 16 bytes of each of four blocks.
template <class Block> static inline __m512i gather(const Block * const * w, size_t at) {
    const auto part = [&](int i) { return _mm_loadu_si128((const __m128i *) ((const char *) w[i] + at)); };
    const __m256i low  = _mm256_inserti128_si256(_mm256_castsi128_si256(part(0)), part(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(part(2)), part(3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

static inline __m128 halves(ggml_half a, ggml_half b, ggml_half c, ggml_half d) {
    return _mm_cvtph_ps(_mm_setr_epi16((short) a, (short) b, (short) c, (short) d, 0, 0, 0, 0));
}

static inline __m512i low(__m512i x) { return _mm512_and_si512(x, _mm512_set1_epi8(0x0F)); }
static inline __m512i high(__m512i x) { return low(_mm512_srli_epi16(x, 4)); }

// The first 16 codes of four blocks, and the last 16.
struct Both {
    __m512i first, last;
};

template <class Block> static inline Both nibbles(const Block * const * w) {
    const __m512i x = gather(w, offsetof(Block, qs));
    return { low(x), high(x) };
}

// The fifth bits of Q5 codes: one 32-bit mask per block.
template <class Block> static inline Both with_fifth_bits(const Block * const * w) {
    uint64_t first = 0, last = 0;
    S2_UNROLL
    for (int i = 0; i < 4; ++i) {
        uint32_t bits;
        memcpy(&bits, w[i]->qh, sizeof(bits));
        first |= (uint64_t) (bits & 0xFFFF) << 16 * i;
        last  |= (uint64_t) (bits >> 16) << 16 * i;
    }
    const Both    x   = nibbles(w);
    const __m512i bit = _mm512_set1_epi8(0x10);
    return { _mm512_or_si512(x.first, _mm512_maskz_mov_epi8(first, bit)), _mm512_or_si512(x.last, _mm512_maskz_mov_epi8(last, bit)) };
}

#define S2_SCALES(w) halves((w)[0]->d, (w)[1]->d, (w)[2]->d, (w)[3]->d)
#define S2_SCALES_OF(w, field) halves(S2_OF(*(w)[0], field), S2_OF(*(w)[1], field), S2_OF(*(w)[2], field), S2_OF(*(w)[3], field))

// `rest` is what meets the sums of the activations: the scales where codes stand too high, or the minimums.
struct Q4_0 {
    using Block = block_q4_0;
    static constexpr int  OFFSET  = 8;
    static constexpr bool MINIMUM = false;
    static Both   codes(const Block * const * w) { return nibbles(w); }
    static __m128 scales(const Block * const * w) { return S2_SCALES(w); }
    static __m128 rest(const Block * const *, __m128 scales) { return scales; }
};

struct Q4_1 {
    using Block = block_q4_1;
    static constexpr int  OFFSET  = 0;
    static constexpr bool MINIMUM = true;
    static Both   codes(const Block * const * w) { return nibbles(w); }
    static __m128 scales(const Block * const * w) { return S2_SCALES_OF(w, d); }
    static __m128 rest(const Block * const * w, __m128) { return S2_SCALES_OF(w, m); }
};

struct Q5_0 {
    using Block = block_q5_0;
    static constexpr int  OFFSET  = 16;
    static constexpr bool MINIMUM = false;
    static Both   codes(const Block * const * w) { return with_fifth_bits(w); }
    static __m128 scales(const Block * const * w) { return S2_SCALES(w); }
    static __m128 rest(const Block * const *, __m128 scales) { return scales; }
};

struct Q5_1 {
    using Block = block_q5_1;
    static constexpr int  OFFSET  = 0;
    static constexpr bool MINIMUM = true;
    static Both   codes(const Block * const * w) { return with_fifth_bits(w); }
    static __m128 scales(const Block * const * w) { return S2_SCALES_OF(w, d); }
    static __m128 rest(const Block * const * w, __m128) { return S2_SCALES_OF(w, m); }
};

struct Q8_0 {
    using Block = block_q8_0;
    static constexpr int  OFFSET  = 128;
    static constexpr bool MINIMUM = false;
    static Both codes(const Block * const * w) {
        const __m512i sign = _mm512_set1_epi8((char) 0x80);
        return { _mm512_xor_si512(gather(w, offsetof(Block, qs)), sign), _mm512_xor_si512(gather(w, offsetof(Block, qs) + 16), sign) };
    }
    static __m128 scales(const Block * const * w) { return S2_SCALES(w); }
    static __m128 rest(const Block * const *, __m128 scales) { return scales; }
};

struct MXFP4 {
    using Block = block_mxfp4;
    static constexpr int  OFFSET  = 12;
    static constexpr bool MINIMUM = false;
    static Both codes(const Block * const * w) {
        const __m128i values = _mm_add_epi8(_mm_loadu_si128((const __m128i *) kvalues_mxfp4), _mm_set1_epi8(OFFSET));
        const __m512i table  = _mm512_broadcast_i32x4(values);
        const Both    x      = nibbles(w);
        return { _mm512_shuffle_epi8(table, x.first), _mm512_shuffle_epi8(table, x.last) };
    }
    static __m128 scales(const Block * const * w) {
        return _mm_setr_ps(GGML_CPU_E8M0_TO_FP32_HALF(w[0]->e), GGML_CPU_E8M0_TO_FP32_HALF(w[1]->e),
                           GGML_CPU_E8M0_TO_FP32_HALF(w[2]->e), GGML_CPU_E8M0_TO_FP32_HALF(w[3]->e));
    }
    static __m128 rest(const Block * const *, __m128 scales) { return scales; }
};

static inline float sum(__m512 a, __m128 b) {
    const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_add_ps(_mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)), b);
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

template <class Type, int R> void blocks_of_128(const Job & job) {
    using Block = typename Type::Block;
    const int64_t n_blocks = job.k / 32;
    // Lanes 0 to 3 belong to the first block, and so on.
    const __m512i each_four = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
    Row rows[R];
    std::copy(job.rows, job.rows + R, rows);
    for (int64_t column = job.first; column < job.last; ++column) {
        const auto *  first = (const Block *) (job.weights + column * job.column_bytes);
        const int64_t ahead = ahead_of(job, column);
        __m512 total[R];
        __m128 rest[R];
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            total[r] = _mm512_setzero_ps();
            rest[r]  = _mm_setzero_ps();
        }
        for (int64_t b = 0; b < n_blocks; b += 4) {
            // Behind the end the last block stands in: its activations are zero.
            const auto    at   = [&](int64_t i) { return first + std::min(b + i, n_blocks - 1); };
            const Block * w[4] = { first + b, at(1), at(2), at(3) };
            prefetch<4 * sizeof(Block)>((const char *) w[0] + ahead);
            const Both   codes  = Type::codes(w);
            const __m128 scales = Type::scales(w);
            const __m128 wanted = Type::rest(w, scales);
            S2_UNROLL
            for (int r = 0; r < R; ++r) {
                const char *     y     = rows[r] + 32 * b;
                const Scale128 & scale = scales_128(rows[r], job.k)[b / 4];
                __m512i products = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes.first, _mm512_loadu_si512(y));
                products = _mm512_dpbusd_epi32(products, codes.last, _mm512_loadu_si512(y + 64));
                const __m128 both = _mm_mul_ps(scales, _mm_loadu_ps(scale.d));
                total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), _mm512_permutexvar_ps(each_four, _mm512_castps128_ps512(both)), total[r]);
                rest[r]  = _mm_fmadd_ps(wanted, _mm_loadu_ps(scale.rest), rest[r]);
            }
        }
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            job.out[r][column] = sum(total[r], rest[r]);
        }
    }
}

template <class Type> const Family * family_of() {
    static const Family family = { Activation::Q8x4, Type::OFFSET, Type::MINIMUM, 32, S2_KERNELS(blocks_of_128, Type) };
    return &family;
}

} // namespace

const Family * avx512_family(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:  return family_of<Q4_0>();
        case GGML_TYPE_Q4_1:  return family_of<Q4_1>();
        case GGML_TYPE_Q5_0:  return family_of<Q5_0>();
        case GGML_TYPE_Q5_1:  return family_of<Q5_1>();
        case GGML_TYPE_Q8_0:  return family_of<Q8_0>();
        case GGML_TYPE_MXFP4: return family_of<MXFP4>();
        default:              return nullptr;
    }
}

} // namespace s2

#else

const s2::Family * s2::avx512_family(ggml_type) { return nullptr; }

#endif
