// Kernels over weights that ggml repacked into blocks of eight columns, eight bytes of each in turn: a lane of the
// accumulators is a column, so the scales are applied once for all columns. x86 only.
//
// With AVX-512 two blocks of eight columns are taken at once. A column's sum is the same in either width.

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

#include "s2-rows-kernel.h"
#include "s2-simd.h"

#include "ggml-cpu-impl.h"
#include "repack.h"
#include "simd-mappings.h"

#include <algorithm>
#include <type_traits>

#if defined(S2_SIMD) && defined(__AVX2__)

namespace s2 {
namespace {

// --- vectors of eight and of sixteen columns
//
// Lanes hold each eight columns in the order 0 4 1 5 2 6 3 7, which costs the fewest shuffles.

static inline __m128i in_lane_order(const ggml_half * d) {
    const __m128i order = _mm_set_epi8(15, 14, 7, 6, 13, 12, 5, 4, 11, 10, 3, 2, 9, 8, 1, 0);
    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *) d), order);
}
static inline void store_eight(float * to, __m256 lanes) {
    _mm256_storeu_ps(to, _mm256_permutevar8x32_ps(lanes, _mm256_set_epi32(7, 5, 3, 1, 6, 4, 2, 0)));
}

static inline int32_t four(const int8_t * y) {
    int32_t bytes;
    memcpy(&bytes, y, sizeof(bytes));
    return bytes;
}

// `dot` adds to every column its products of 16 codes, four a vector, with 16 activations.
struct Eight {
    using I = __m256i;
    using F = __m256;
    static constexpr int BLOCKS = 1;

    static I load(const uint8_t * const * p, int at) { return load_codes(p[0] + at); }
    static F halves(const ggml_half * const * d) { return _mm256_cvtph_ps(in_lane_order(d[0])); }
    static F exponents(const uint8_t * const * e) {
        const auto at = [&](int i) { return GGML_CPU_E8M0_TO_FP32_HALF(e[0][i]); };
        return _mm256_setr_ps(at(0), at(4), at(1), at(5), at(2), at(6), at(3), at(7));
    }
    static I    bytes(const __m128i * eight) { return _mm256_cvtepu8_epi32(eight[0]); }
    static I    even(I a, I b) { return _mm256_blend_epi32(a, _mm256_shuffle_epi32(b, 177), 170); }
    static I    odd(I a, I b) { return _mm256_blend_epi32(_mm256_shuffle_epi32(a, 177), b, 170); }
    static I    low(I x) { return low_nibbles(x); }
    static I    high(I x) { return high_nibbles(x); }
    static I    flip(I x) { return _mm256_xor_si256(x, _mm256_set1_epi8(8)); }
    static I    look(I x, __m128i table) { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), x); }
    static I    splat(int32_t x) { return _mm256_set1_epi32(x); }
    static I    dot(I acc, const I * codes, const int8_t * y) {
#if defined(S2_VNNI)
        S2_UNROLL
        for (int i = 0; i < 4; ++i) {
            acc = dpbusd(acc, codes[i], splat(four(y + 4 * i)));
        }
        return acc;
#else
        I pairs = _mm256_setzero_si256();  // 16-bit: four of them fit, with codes up to 31
        S2_UNROLL
        for (int i = 0; i < 4; ++i) {
            pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(codes[i], splat(four(y + 4 * i))));
        }
        return dpwssd(acc, pairs, _mm256_set1_epi16(1));
#endif
    }
    static I    add_product(I acc, I a, I b) { return _mm256_add_epi32(acc, _mm256_mullo_epi32(a, b)); }
    static F    zero() { return _mm256_setzero_ps(); }
    static F    scaled(F a, float b) { return _mm256_mul_ps(a, _mm256_set1_ps(b)); }
    static F    add(F acc, I x, F scale) { return _mm256_fmadd_ps(_mm256_cvtepi32_ps(x), scale, acc); }
    static F    subtract(F acc, I x, F scale) { return _mm256_fnmadd_ps(_mm256_cvtepi32_ps(x), scale, acc); }
    static void store(float * to, F x) { store_eight(to, x); }
};

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VNNI__)

struct Sixteen {
    using I = __m512i;
    using F = __m512;
    static constexpr int BLOCKS = 2;

    static I load(const uint8_t * const * p, int at) {
        return _mm512_inserti64x4(_mm512_castsi256_si512(load_codes(p[0] + at)), load_codes(p[1] + at), 1);
    }
    static F halves(const ggml_half * const * d) {
        return _mm512_cvtph_ps(_mm256_set_m128i(in_lane_order(d[1]), in_lane_order(d[0])));
    }
    static F exponents(const uint8_t * const * e) {
        return _mm512_insertf32x8(_mm512_castps256_ps512(Eight::exponents(e)), Eight::exponents(e + 1), 1);
    }
    static I    bytes(const __m128i * eight) { return _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(eight[0], eight[1])); }
    static I    even(I a, I b) { return _mm512_mask_shuffle_epi32(a, 0xAAAA, b, (_MM_PERM_ENUM) 177); }
    static I    odd(I a, I b) { return _mm512_mask_shuffle_epi32(b, 0x5555, a, (_MM_PERM_ENUM) 177); }
    static I    low(I x) { return _mm512_and_si512(x, _mm512_set1_epi8(0x0F)); }
    static I    high(I x) { return low(_mm512_srli_epi16(x, 4)); }
    static I    flip(I x) { return _mm512_xor_si512(x, _mm512_set1_epi8(8)); }
    static I    look(I x, __m128i table) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), x); }
    static I    splat(int32_t x) { return _mm512_set1_epi32(x); }
    static I    dot(I acc, const I * codes, const int8_t * y) {
        S2_UNROLL
        for (int i = 0; i < 4; ++i) {
            acc = _mm512_dpbusd_epi32(acc, codes[i], splat(four(y + 4 * i)));
        }
        return acc;
    }
    static I    add_product(I acc, I a, I b) { return _mm512_add_epi32(acc, _mm512_mullo_epi32(a, b)); }
    static F    zero() { return _mm512_setzero_ps(); }
    static F    scaled(F a, float b) { return _mm512_mul_ps(a, _mm512_set1_ps(b)); }
    static F    add(F acc, I x, F scale) { return _mm512_fmadd_ps(_mm512_cvtepi32_ps(x), scale, acc); }
    static F    subtract(F acc, I x, F scale) { return _mm512_fnmadd_ps(_mm512_cvtepi32_ps(x), scale, acc); }
    static void store(float * to, F x) {
        store_eight(to, _mm512_castps512_ps256(x));
        store_eight(to + 8, _mm512_extractf32x8_ps(x, 1));
    }
};
// One row waits for memory, and two streams of weights keep it waiting longer than one.
template <int R> using Widest = std::conditional_t<(R > 1), Sixteen, Eight>;

#else
template <int> using Widest = Eight;
#endif

// 128 bytes per block: eight columns of 32 nibble pairs. codes[i] holds four codes of every column, to be multiplied
// with activations 4i to 4i + 3; those from 4 on are the high nibbles.
template <class V> static inline void unpack(const uint8_t * const * p, int at, typename V::I * codes) {
    S2_UNROLL
    for (int i = 0; i < 2; ++i) {
        const auto a    = V::load(p, at + 64 * i);       // columns 0 to 3
        const auto b    = V::load(p, at + 64 * i + 32);  // columns 4 to 7
        const auto even = V::even(a, b);
        const auto odd  = V::odd(a, b);
        codes[2 * i]     = V::low(even);
        codes[2 * i + 1] = V::low(odd);
        codes[2 * i + 4] = V::high(even);
        codes[2 * i + 5] = V::high(odd);
    }
}

// Where to prefetch, in blocks from the one at hand. Two streams of weights lie side by side, each as long as a row:
// behind the end of one comes the other, and behind that what the first goes on with.
template <class V, class Block> struct Ahead {
    int64_t near, far, turn;

    explicit Ahead(int64_t n_blocks) {
        const int64_t distance = AHEAD_BYTES / sizeof(Block) + 1;
        const int64_t other    = (V::BLOCKS - 1) * n_blocks;
        near = distance + distance / n_blocks * other;
        far  = near + other;
        turn = n_blocks - distance % n_blocks;
    }
    int64_t from(int64_t b) const { return b < turn ? near : far; }
};

// --- one scale per 32

struct Q4_0 {
    using Block = block_q4_0x8;
    static constexpr int OFFSET = 8;
    template <class V> static typename V::F scales(const Block * const * w) {
        const ggml_half * d[2] = { w[0]->d, w[V::BLOCKS - 1]->d };
        return V::halves(d);
    }
    // Repacking flips the sign bit of every nibble.
    template <class V> static typename V::I code(typename V::I nibbles) { return V::flip(nibbles); }
};

struct MXFP4 {
    using Block = block_mxfp4x8;
    static constexpr int OFFSET = 12;
    template <class V> static typename V::F scales(const Block * const * w) {
        const uint8_t * e[2] = { w[0]->e, w[V::BLOCKS - 1]->e };
        return V::exponents(e);
    }
    template <class V> static typename V::I code(typename V::I nibbles) {
        return V::look(nibbles, _mm_add_epi8(_mm_loadu_si128((const __m128i *) kvalues_mxfp4), _mm_set1_epi8(OFFSET)));
    }
};

template <class Type, class V, int R> static inline void columns_of_32(const Job & job, const Row * rows, int64_t column) {
    const int64_t n_blocks = job.k / 32;
    const auto *  first    = (const typename Type::Block *) (job.weights + column * job.column_bytes);
    const Ahead<V, typename Type::Block> ahead(n_blocks);
    typename V::F total[R];
    S2_UNROLL
    for (int r = 0; r < R; ++r) {
        total[r] = V::zero();
    }
    for (int64_t b = 0; b < n_blocks; ++b) {
        const typename Type::Block * w[2] = { first + b, first + b + (V::BLOCKS - 1) * n_blocks };
        const uint8_t *              p[2] = { (const uint8_t *) w[0]->qs, (const uint8_t *) w[1]->qs };
        S2_UNROLL
        for (int i = 0; i < V::BLOCKS; ++i) {
            prefetch<sizeof(typename Type::Block)>(w[i] + ahead.from(b));
        }
        typename V::I codes[8];
        unpack<V>(p, 0, codes);
        S2_UNROLL
        for (int i = 0; i < 8; ++i) {
            codes[i] = Type::template code<V>(codes[i]);
        }
        const auto scales = Type::template scales<V>(w);
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            const int8_t *  y     = bytes_of(rows[r]) + 32 * b;
            const Scale32 & scale = scales_32(rows[r], job.k)[b];
            const auto products = V::dot(V::dot(V::splat(scale.excess), codes, y), codes + 4, y + 16);
            total[r] = V::add(total[r], products, V::scaled(scales, scale.d));
        }
    }
    S2_UNROLL
    for (int r = 0; r < R; ++r) {
        V::store(job.out[r] + column, total[r]);
    }
}

// --- Q4_K

// Scales and minimums of one run of 32 in each of eight columns: eight bytes of each, in lane order.
struct SixBitLanes {
    __m128i scales, minimums;

    explicit SixBitLanes(const uint8_t * packed) {
        uint32_t x[3];
        memcpy(x, packed, 12);
        const __m128i bytes = _mm_set_epi32(
            (int) (((x[2] >> 4) & 0x0f0f0f0f) | ((x[1] >> 2) & 0x30303030)), (int) (x[1] & 0x3f3f3f3f),
            (int) ((x[2] & 0x0f0f0f0f) | ((x[0] >> 2) & 0x30303030)), (int) (x[0] & 0x3f3f3f3f));
        scales   = _mm_shuffle_epi8(bytes, _mm_set_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 7, 3, 6, 2, 5, 1, 4, 0));
        minimums = _mm_shuffle_epi8(bytes, _mm_set_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 15, 11, 14, 10, 13, 9, 12, 8));
    }
};

// One run of 32 of every column, with all rows.
template <class V, int R>
static inline void multiply_run(const block_q4_Kx8 * const * w, int run, const typename V::I * codes, const Row * rows, int64_t k, int64_t b,
                                typename V::I * products, typename V::I * least) {
    const SixBitLanes first(w[0]->scales + 12 * run);
    const SixBitLanes second(w[V::BLOCKS - 1]->scales + 12 * run);
    const __m128i both[2][2] = { { first.scales, second.scales }, { first.minimums, second.minimums } };
    const auto scales   = V::bytes(both[0]);
    const auto minimums = V::bytes(both[1]);
    S2_UNROLL
    for (int r = 0; r < R; ++r) {
        const int8_t *  y    = bytes_of(rows[r]) + QK_K * b + 32 * run;
        const int16_t * sums = scales_256(rows[r], k)[b].sums + 2 * run;
        const auto dots = V::dot(V::dot(V::splat(0), codes, y), codes + 4, y + 16);
        products[r] = V::add_product(products[r], dots, scales);
        least[r]    = V::add_product(least[r], V::splat(sums[0] + sums[1]), minimums);
    }
}

template <class, class V, int R> static inline void columns_of_q4_K(const Job & job, const Row * rows, int64_t column) {
    const int64_t n_blocks = job.k / QK_K;
    const auto *  first    = (const block_q4_Kx8 *) (job.weights + column * job.column_bytes);
    const Ahead<V, block_q4_Kx8> ahead(n_blocks);
    typename V::F total[R];
    S2_UNROLL
    for (int r = 0; r < R; ++r) {
        total[r] = V::zero();
    }
    for (int64_t b = 0; b < n_blocks; ++b) {
        const block_q4_Kx8 * w[2] = { first + b, first + b + (V::BLOCKS - 1) * n_blocks };
        const uint8_t *      p[2] = { w[0]->qs, w[1]->qs };
        typename V::I products[R], least[R];
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            products[r] = least[r] = V::splat(0);
        }
        for (int pair = 0; pair < 4; ++pair) {
            S2_UNROLL
            for (int i = 0; i < V::BLOCKS; ++i) {
                prefetch<sizeof(block_q4_Kx8) / 4>((const char *) (w[i] + ahead.from(b)) + sizeof(block_q4_Kx8) / 4 * pair);
            }
            // The first half of each column's 32 bytes, then the second; low nibbles are one run, high ones the next.
            typename V::I half[2][8], run[2][8];
            unpack<V>(p, 256 * pair, half[0]);
            unpack<V>(p, 256 * pair + 128, half[1]);
            S2_UNROLL
            for (int i = 0; i < 8; ++i) {
                run[0][i] = half[i / 4][i % 4];
                run[1][i] = half[i / 4][i % 4 + 4];
            }
            multiply_run<V, R>(w, 2 * pair, run[0], rows, job.k, b, products, least);
            multiply_run<V, R>(w, 2 * pair + 1, run[1], rows, job.k, b, products, least);
        }
        const ggml_half * d[2] = { w[0]->d, w[1]->d };
        const ggml_half * m[2] = { w[0]->dmin, w[1]->dmin };
        const auto scales = V::halves(d);
        const auto floors = V::halves(m);
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            const float scale = scales_256(rows[r], job.k)[b].d;
            total[r] = V::add(total[r], products[r], V::scaled(scales, scale));
            total[r] = V::subtract(total[r], least[r], V::scaled(floors, scale));
        }
    }
    S2_UNROLL
    for (int r = 0; r < R; ++r) {
        V::store(job.out[r] + column, total[r]);
    }
}

// --- all columns

template <int R> struct Rows {
    Row at[R];
    explicit Rows(const Job & job) { std::copy(job.rows, job.rows + R, at); }
};

template <class Type, int R> void blocks_of_32(const Job & job) {
    const Rows<R> rows(job);
    int64_t column = job.first;
    for (; column + 8 * Widest<R>::BLOCKS <= job.last; column += 8 * Widest<R>::BLOCKS) {
        columns_of_32<Type, Widest<R>, R>(job, rows.at, column);
    }
    for (; column < job.last; column += 8) {
        columns_of_32<Type, Eight, R>(job, rows.at, column);
    }
}

template <class, int R> void blocks_of_q4_K(const Job & job) {
    const Rows<R> rows(job);
    int64_t column = job.first;
    for (; column + 8 * Widest<R>::BLOCKS <= job.last; column += 8 * Widest<R>::BLOCKS) {
        columns_of_q4_K<void, Widest<R>, R>(job, rows.at, column);
    }
    for (; column < job.last; column += 8) {
        columns_of_q4_K<void, Eight, R>(job, rows.at, column);
    }
}

template <class Type> const Family * family_of_32() {
    static const Family family = { Activation::Q8, Type::OFFSET, false, 32, S2_KERNELS(blocks_of_32, Type) };
    return &family;
}

} // namespace

const Family * avx2_interleaved_family(ggml_type type, s2_layout layout) {
    static const Family q4_K = { Activation::Q8_K, 0, false, QK_K, S2_KERNELS(blocks_of_q4_K, void) };
    if (layout != S2_LAYOUT_8X8) {
        return nullptr;
    }
    switch (type) {
        case GGML_TYPE_Q4_0:  return family_of_32<Q4_0>();
        case GGML_TYPE_MXFP4: return family_of_32<MXFP4>();
        case GGML_TYPE_Q4_K:  return &q4_K;
        default:              return nullptr;
    }
}

} // namespace s2

#else

const s2::Family * s2::avx2_interleaved_family(ggml_type, s2_layout) { return nullptr; }

#endif
