// Kernels over weights as they lie in the file: each block is unpacked once and multiplied with all rows.

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

#include "s2-rows-kernel.h"
#include "s2-simd.h"

#include "ggml-cpu-impl.h"
#include "simd-mappings.h"

#ifdef S2_SIMD

namespace s2 {
namespace {

#define S2_OF(w, field) ((w).GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.field)

static inline float half(ggml_fp16_t x) { return GGML_CPU_FP16_TO_FP32(x); }

// What the codes of a type stand above the values they mean.
constexpr int offset_of(int value) { return UNSIGNED_CODES ? value : 0; }

// --- blocks of 32 with one scale

// Codes minus `offset` where the processor takes signed ones.
template <int offset> static inline Codes lowered(Codes x) {
#if defined(__aarch64__)
    return { { vsubq_s8(x.val[0], vdupq_n_s8(offset)), vsubq_s8(x.val[1], vdupq_n_s8(offset)) } };
#else
    return x;
#endif
}

struct Q4_0 {
    using Block = block_q4_0;
    static constexpr int  OFFSET  = offset_of(8);
    static constexpr bool MINIMUM = false;
    static constexpr bool BYTES   = false;
    static float scale(const Block & w) { return half(w.d); }
    static Codes codes(const Block & w) { return lowered<8>(load_nibbles(w.qs)); }
};

struct Q4_1 {
    using Block = block_q4_1;
    static constexpr int  OFFSET  = 0;
    static constexpr bool MINIMUM = true;
    static constexpr bool BYTES   = false;
    static float scale(const Block & w) { return half(S2_OF(w, d)); }
    static float minimum(const Block & w) { return half(S2_OF(w, m)); }
    static Codes codes(const Block & w) { return load_nibbles(w.qs); }
};

struct Q5_0 {
    using Block = block_q5_0;
    static constexpr int  OFFSET  = offset_of(16);
    static constexpr bool MINIMUM = false;
    static constexpr bool BYTES   = false;
    static float scale(const Block & w) { return half(w.d); }
    static Codes codes(const Block & w) { return lowered<16>(either(load_nibbles(w.qs), spread_bits_at_4(w.qh))); }
};

struct Q5_1 {
    using Block = block_q5_1;
    static constexpr int  OFFSET  = 0;
    static constexpr bool MINIMUM = true;
    static constexpr bool BYTES   = false;
    static float scale(const Block & w) { return half(S2_OF(w, d)); }
    static float minimum(const Block & w) { return half(S2_OF(w, m)); }
    static Codes codes(const Block & w) { return either(load_nibbles(w.qs), spread_bits_at_4(w.qh)); }
};

struct Q8_0 {
    using Block = block_q8_0;
    static constexpr int  OFFSET  = BYTE_OFFSET;
    static constexpr bool MINIMUM = false;
    static constexpr bool BYTES   = true;
    static float scale(const Block & w) { return half(w.d); }
    static Codes codes(const Block & w) { return load_bytes(w.qs); }
};

struct MXFP4 {
    using Block = block_mxfp4;
    static constexpr int  OFFSET  = offset_of(12);
    static constexpr bool MINIMUM = false;
    static constexpr bool BYTES   = false;
    static float scale(const Block & w) { return GGML_CPU_E8M0_TO_FP32_HALF(w.e); }
    static Codes codes(const Block & w) { return look_up(load_nibbles(w.qs), kvalues_mxfp4, OFFSET); }
};

template <class Type> static inline Ints dot_codes(Ints acc, Codes codes, const int8_t * y) {
    if constexpr (Type::BYTES) {
        return dot_bytes(acc, codes, y);
    } else {
        return dot(acc, codes, y);
    }
}

template <class Type, int R> void blocks_of_32(const Job & job) {
    const int64_t n_blocks = job.k / 32;
    Row rows[R];
    S2_UNROLL
    for (int r = 0; r < R; ++r) {
        rows[r] = job.rows[r];
    }
    for (int64_t column = job.first; column < job.last; ++column) {
        const auto *  w     = (const typename Type::Block *) (job.weights + column * job.column_bytes);
        const int64_t ahead = ahead_of(job, column);
        Vec   total[R];
        float minimum[R];
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            total[r]   = zero();
            minimum[r] = 0.0f;
        }
        for (int64_t b = 0; b < n_blocks; ++b) {
            prefetch<sizeof(w[b])>((const char *) (w + b) + ahead);
            const Codes codes = Type::codes(w[b]);
            const Vec   scale = splat(Type::scale(w[b]));
            S2_UNROLL
            for (int r = 0; r < R; ++r) {
                Ints start = no_ints();
                if constexpr (Type::OFFSET != 0) {
                    start = start_at(scales_32(rows[r], job.k)[b].excess);
                }
                const Ints products = dot_codes<Type>(start, codes, bytes_of(rows[r]) + 32 * b);
                total[r] = fma(to_float(products), mul(scale, splat(scales_32(rows[r], job.k)[b].d)), total[r]);
                if constexpr (Type::MINIMUM) {
                    minimum[r] = std::fma(Type::minimum(w[b]), scales_32(rows[r], job.k)[b].minimum, minimum[r]);
                }
            }
        }
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            job.out[r][column] = Type::MINIMUM ? sum(total[r]) + minimum[r] : sum(total[r]);
        }
    }
}

// --- super-blocks of 256 with integer scales for 16 or 32

// Scales for 32 codes each, and minimums.
template <class B> struct WithMinimums {
    using Block = B;
    static constexpr int GROUP = 2;  // runs of 32 that unpack yields
    const B &     w;
    const SixBits six;
    int8_t        minimums[16];  // each twice: sums of activations come per 16
    const Vec     scale, least;

    explicit WithMinimums(const B & w) : w(w), six(w.scales), scale(splat(half(S2_OF(w, d)))), least(splat(half(S2_OF(w, dmin)))) {
        for (int i = 0; i < 16; ++i) {
            minimums[i] = (int8_t) six.minimums[i / 2];
        }
    }
    Scales scales(int run) const { return scales_of(six.scales[run], six.scales[run]); }

    Vec add(Vec total, Ints products, const Scale256 & row) const {
        const Vec d = splat(row.d);
        total = fma(to_float(products), mul(scale, d), total);
        return fnma(to_float(dot_sums(minimums, row.sums)), mul(least, d), total);
    }
};

struct Q4_K : WithMinimums<block_q4_K> {
    using WithMinimums::WithMinimums;
    template <int group> void unpack(Codes * codes) const {
        const Codes x = load_codes(w.qs + 32 * group);
        codes[0] = low_nibbles(x);
        codes[1] = high_nibbles(x);
    }
};

struct Q5_K : WithMinimums<block_q5_K> {
    using WithMinimums::WithMinimums;
    template <int group> void unpack(Codes * codes) const {
        const Codes x = load_codes(w.qs + 32 * group);
        const Codes h = load_codes(w.qh);
        codes[0] = either(low_nibbles(x), one_bit_at_4<2 * group>(h));
        codes[1] = either(high_nibbles(x), one_bit_at_4<2 * group + 1>(h));
    }
};

struct Q6_K {
    using Block = block_q6_K;
    static constexpr int GROUP = 4;
    const Block & w;
    const Vec     scale;

    explicit Q6_K(const Block & w) : w(w), scale(splat(half(w.d))) {}
    Scales scales(int run) const { return scales_of(w.scales[2 * run], w.scales[2 * run + 1]); }

    template <int group> void unpack(Codes * codes) const {
        const Codes x = load_codes(w.ql + 64 * group);
        const Codes y = load_codes(w.ql + 64 * group + 32);
        const Codes h = load_codes(w.qh + 32 * group);
        codes[0] = either(low_nibbles(x), two_bits_at_4<0>(h));
        codes[1] = either(low_nibbles(y), two_bits_at_4<2>(h));
        codes[2] = either(high_nibbles(x), two_bits_at_4<4>(h));
        codes[3] = either(high_nibbles(y), two_bits_at_4<6>(h));
    }
    // Codes stand 32 above their values.
    Vec add(Vec total, Ints products, const Scale256 & row) const {
        const Ints exact = minus_shifted<5>(products, dot_sums(w.scales, row.sums));
        return fma(to_float(exact), mul(scale, splat(row.d)), total);
    }
};

template <class Type, int R, int group> static inline void multiply_group(const Type & type, const Row * rows, int64_t b, Ints * products) {
    Codes codes[Type::GROUP];
    type.template unpack<group>(codes);
    S2_UNROLL
    for (int i = 0; i < Type::GROUP; ++i) {
        const int    run    = Type::GROUP * group + i;
        const Scales scales = type.scales(run);
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            products[r] = dot_scaled(products[r], codes[i], bytes_of(rows[r]) + 256 * b + 32 * run, scales);
        }
    }
}

template <class Type, int R> void blocks_of_256(const Job & job) {
    const int64_t n_blocks = job.k / 256;
    Row rows[R];
    S2_UNROLL
    for (int r = 0; r < R; ++r) {
        rows[r] = job.rows[r];
    }
    for (int64_t column = job.first; column < job.last; ++column) {
        const auto *  w     = (const typename Type::Block *) (job.weights + column * job.column_bytes);
        const int64_t ahead = ahead_of(job, column);
        Vec total[R];
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            total[r] = zero();
        }
        for (int64_t b = 0; b < n_blocks; ++b) {
            prefetch<sizeof(w[b])>((const char *) (w + b) + ahead);
            const Type type(w[b]);
            Ints products[R];
            S2_UNROLL
            for (int r = 0; r < R; ++r) {
                products[r] = no_ints();
            }
            multiply_group<Type, R, 0>(type, rows, b, products);
            multiply_group<Type, R, 1>(type, rows, b, products);
            if constexpr (Type::GROUP == 2) {
                multiply_group<Type, R, 2>(type, rows, b, products);
                multiply_group<Type, R, 3>(type, rows, b, products);
            }
            S2_UNROLL
            for (int r = 0; r < R; ++r) {
                total[r] = type.add(total[r], products[r], scales_256(rows[r], job.k)[b]);
            }
        }
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            job.out[r][column] = sum(total[r]);
        }
    }
}

// --- halves

// Two sums per row, because one would wait for itself.
template <class, int R> void halves(const Job & job) {
    Row rows[R];
    S2_UNROLL
    for (int r = 0; r < R; ++r) {
        rows[r] = job.rows[r];
    }
    for (int64_t column = job.first; column < job.last; ++column) {
        const auto *  w     = (const ggml_fp16_t *) (job.weights + column * job.column_bytes);
        const int64_t ahead = ahead_of(job, column);
        Vec total[R][2];
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            total[r][0] = total[r][1] = zero();
        }
        for (int64_t i = 0; i < job.k; i += 2 * LANES) {
            prefetch<2 * LANES * sizeof(*w)>((const char *) (w + i) + ahead);
            const Vec a = load_half(w + i);
            const Vec b = load_half(w + i + LANES);
            S2_UNROLL
            for (int r = 0; r < R; ++r) {
                total[r][0] = fma(a, load(floats_of(rows[r]) + i), total[r][0]);
                total[r][1] = fma(b, load(floats_of(rows[r]) + i + LANES), total[r][1]);
            }
        }
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            job.out[r][column] = sum(total[r][0]) + sum(total[r][1]);
        }
    }
}

template <class Type> const Family * family_of_32() {
    static const Family family = { Activation::Q8, Type::OFFSET, Type::MINIMUM, 32, S2_KERNELS(blocks_of_32, Type) };
    return &family;
}

template <class Type> const Family * family_of_256() {
    static const Family family = { Activation::Q8_K, 0, false, 256, S2_KERNELS(blocks_of_256, Type) };
    return &family;
}

} // namespace

const Family * plain_family(ggml_type type) {
    static const Family f16 = { Activation::F32, 0, false, 2 * LANES, S2_KERNELS(halves, void) };
    if (const Family * family = avx512_family(type)) {
        return family;
    }
    switch (type) {
        case GGML_TYPE_F16:   return &f16;
        case GGML_TYPE_Q4_0:  return family_of_32<Q4_0>();
        case GGML_TYPE_Q4_1:  return family_of_32<Q4_1>();
        case GGML_TYPE_Q5_0:  return family_of_32<Q5_0>();
        case GGML_TYPE_Q5_1:  return family_of_32<Q5_1>();
        case GGML_TYPE_Q8_0:  return family_of_32<Q8_0>();
        case GGML_TYPE_MXFP4: return family_of_32<MXFP4>();
        case GGML_TYPE_Q4_K:  return family_of_256<Q4_K>();
        case GGML_TYPE_Q5_K:  return family_of_256<Q5_K>();
        case GGML_TYPE_Q6_K:  return family_of_256<Q6_K>();
        default:              return nullptr;
    }
}

} // namespace s2

#else

const s2::Family * s2::plain_family(ggml_type) { return nullptr; }

#endif
