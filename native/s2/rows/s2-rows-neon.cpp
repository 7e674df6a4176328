// Kernels over weights that ggml repacked for ARM: blocks of four or eight columns, four or eight bytes of each in turn.
// A lane of the accumulators is a column, so the scales are applied once for four columns.
//
// Dot products serve the layouts made for int8 matrix instructions too. Those instructions multiply two rows at once,
// but want the rows interleaved and leave interleaved sums: of 16 dot products they would save two.

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

#include "s2-rows-kernel.h"
#include "s2-simd.h"

#include "ggml-cpu-impl.h"
#include "repack.h"
#include "simd-mappings.h"

#include <algorithm>

#if defined(S2_SIMD) && defined(__aarch64__)

namespace s2 {
namespace {

// `bytes` of each of `columns`, then their next, and so on.
template <int columns, int bytes> struct Interleaved {
    static constexpr int COLUMNS = columns;

    // Four columns, either the first or the second four, from the byte at `from` in each: part i holds their bytes
    // 4i to 4i + 3.
    template <int parts> static void load(const void * weights, int from, int four, uint8x16_t * part) {
        const uint8_t * p = (const uint8_t *) weights + columns * from + 4 * bytes * four;
        S2_UNROLL
        for (int i = 0; i < parts; i += bytes / 4) {
            const uint8x16_t first = vld1q_u8(p + 4 * columns * i);
            if constexpr (bytes == 4) {
                part[i] = first;
            } else {
                const uint32x4_t a = vreinterpretq_u32_u8(first);  // eight bytes of two columns
                const uint32x4_t b = vreinterpretq_u32_u8(vld1q_u8(p + 4 * columns * i + 16));
                part[i]     = vreinterpretq_u8_u32(vuzp1q_u32(a, b));
                part[i + 1] = vreinterpretq_u8_u32(vuzp2q_u32(a, b));
            }
        }
    }
};

static inline int8x16_t low(uint8x16_t x) { return vreinterpretq_s8_u8(vandq_u8(x, vdupq_n_u8(0x0F))); }
static inline int8x16_t high(uint8x16_t x) { return vreinterpretq_s8_u8(vshrq_n_u8(x, 4)); }

// Adds 16 codes of four columns, in four parts, times 16 activations.
static inline Ints dot_16(Ints acc, const int8x16_t * codes, const int8_t * y) {
    const int8x16_t activations = vld1q_s8(y);
    acc = vdotq_laneq_s32(acc, codes[0], activations, 0);
    acc = vdotq_laneq_s32(acc, codes[1], activations, 1);
    acc = vdotq_laneq_s32(acc, codes[2], activations, 2);
    return vdotq_laneq_s32(acc, codes[3], activations, 3);
}
static inline Ints dot_32(const int8x16_t * codes, const int8_t * y) { return dot_16(dot_16(no_ints(), codes, y), codes + 4, y + 16); }

// --- one scale per 32

template <class L> struct Q4_0 {
    using Layout = L;
    using Block  = block<4, L::COLUMNS>;
    // Repacking made the nibbles signed. They stay in the upper half of a byte, 16 times as much.
    static void unpack(const Block & w, int four, int8x16_t * codes) {
        uint8x16_t x[4];
        L::template load<4>(w.qs, 0, four, x);
        S2_UNROLL
        for (int i = 0; i < 4; ++i) {
            codes[i]     = vreinterpretq_s8_u8(vshlq_n_u8(x[i], 4));
            codes[i + 4] = vreinterpretq_s8_u8(vandq_u8(x[i], vdupq_n_u8(0xF0)));
        }
    }
    static Vec scales(const Block & w, int four) { return load_half(w.d + 4 * four); }
    static Vec value(Ints products) { return vcvtq_n_f32_s32(products, 4); }
};

template <class L> struct Q8_0 {
    using Layout = L;
    using Block  = block<8, L::COLUMNS>;
    static void unpack(const Block & w, int four, int8x16_t * codes) {
        uint8x16_t x[8];
        L::template load<8>(w.qs, 0, four, x);
        S2_UNROLL
        for (int i = 0; i < 8; ++i) {
            codes[i] = vreinterpretq_s8_u8(x[i]);
        }
    }
    static Vec scales(const Block & w, int four) { return load_half(w.d + 4 * four); }
    static Vec value(Ints products) { return to_float(products); }
};

template <class L> struct MXFP4 {
    using Layout = L;
    using Block  = block_mxfp4x4;
    static_assert(L::COLUMNS == 4, "ggml has no other for ARM");
    static void unpack(const Block & w, int four, int8x16_t * codes) {
        const int8x16_t values = vld1q_s8(kvalues_mxfp4);
        uint8x16_t x[4];
        L::template load<4>(w.qs, 0, four, x);
        S2_UNROLL
        for (int i = 0; i < 4; ++i) {
            codes[i]     = vqtbl1q_s8(values, vreinterpretq_u8_s8(low(x[i])));
            codes[i + 4] = vqtbl1q_s8(values, vreinterpretq_u8_s8(high(x[i])));
        }
    }
    static Vec scales(const Block & w, int) {
        float d[4];
        S2_UNROLL
        for (int i = 0; i < 4; ++i) {
            d[i] = GGML_CPU_E8M0_TO_FP32_HALF(w.e[i]);
        }
        return load(d);
    }
    static Vec value(Ints products) { return to_float(products); }
};

template <class Type, int R> void blocks_of_32(const Job & job) {
    constexpr int COLUMNS  = Type::Layout::COLUMNS;
    const int64_t n_blocks = job.k / 32;
    Row rows[R];
    std::copy(job.rows, job.rows + R, rows);
    for (int64_t column = job.first; column < job.last; column += COLUMNS) {
        const auto * w = (const typename Type::Block *) (job.weights + column * job.column_bytes);
        Vec total[COLUMNS / 4][R];
        std::fill_n(total[0], COLUMNS / 4 * R, zero());
        for (int64_t b = 0; b < n_blocks; ++b) {
            prefetch<sizeof(w[b])>((const char *) (w + b) + AHEAD_BYTES);
            S2_UNROLL
            for (int four = 0; four < COLUMNS / 4; ++four) {
                int8x16_t codes[8];
                Type::unpack(w[b], four, codes);
                const Vec scales = Type::scales(w[b], four);
                S2_UNROLL
                for (int r = 0; r < R; ++r) {
                    const Ints products = dot_32(codes, bytes_of(rows[r]) + 32 * b);
                    const Vec  both     = mul(scales, splat(scales_32(rows[r], job.k)[b].d));
                    total[four][r] = fma(Type::value(products), both, total[four][r]);
                }
            }
        }
        S2_UNROLL
        for (int i = 0; i < COLUMNS / 4 * R; ++i) {
            vst1q_f32(job.out[i % R] + column + i / R * 4, total[i / R][i % R]);
        }
    }
}

// --- super-blocks of 256 with integer scales for 16 or 32, always of eight columns

// Bits from `bit` on, moved to bit 4 and up.
static inline int8x16_t bits_at_4(uint8x16_t x, int bit, uint8_t mask) {
    return vreinterpretq_s8_u8(vandq_u8(vshlq_u8(x, vdupq_n_s8((int8_t) (4 - bit))), vdupq_n_u8(mask)));
}

static inline int16x4_t four_of(int16x8_t x, int four) { return four == 0 ? vget_low_s16(x) : vget_high_s16(x); }

// Scales for 32 codes each, and minimums.
template <class B> struct WithMinimums {
    using Block = B;
    static constexpr int SCALES = 1;  // per run of 32
    const B & w;
    int16x8_t steps[8], minimums[8];  // of each run in eight columns

    explicit WithMinimums(const B & w) : w(w) {
        for (int run = 0; run < 8; ++run) {
            const SixBits six(w.scales + 12 * run);
            steps[run]    = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(six.scales)));
            minimums[run] = vreinterpretq_s16_u16(vmovl_u8(vld1_u8(six.minimums)));
        }
    }
    // A pair of runs lies in the low and the high nibbles of the same bytes.
    static int run(int pair, int nibble) { return 2 * pair + nibble; }
    Ints step(int run, int, int four) const { return vmovl_s16(four_of(steps[run], four)); }

    Vec add(Vec total, Ints products, const Scale256 & row, int four) const {
        const int16x8_t sums = vpaddq_s16(vld1q_s16(row.sums), vld1q_s16(row.sums + 8));
        Ints least = no_ints();
        least = vmlal_laneq_s16(least, four_of(minimums[0], four), sums, 0);
        least = vmlal_laneq_s16(least, four_of(minimums[1], four), sums, 1);
        least = vmlal_laneq_s16(least, four_of(minimums[2], four), sums, 2);
        least = vmlal_laneq_s16(least, four_of(minimums[3], four), sums, 3);
        least = vmlal_laneq_s16(least, four_of(minimums[4], four), sums, 4);
        least = vmlal_laneq_s16(least, four_of(minimums[5], four), sums, 5);
        least = vmlal_laneq_s16(least, four_of(minimums[6], four), sums, 6);
        least = vmlal_laneq_s16(least, four_of(minimums[7], four), sums, 7);
        total = fma(to_float(products), mul(load_half(w.d + 4 * four), splat(row.d)), total);
        return fnma(to_float(least), mul(load_half(w.dmin + 4 * four), splat(row.d)), total);
    }
};

template <class L> struct Q4_K : WithMinimums<block_q4_Kx8> {
    using WithMinimums::WithMinimums;
    void unpack(int pair, int four, int8x16_t codes[2][8]) const {
        uint8x16_t x[8];
        L::template load<8>(w.qs, 32 * pair, four, x);
        S2_UNROLL
        for (int i = 0; i < 8; ++i) {
            codes[0][i] = low(x[i]);
            codes[1][i] = high(x[i]);
        }
    }
};

template <class L> struct Q5_K : WithMinimums<block_q5_Kx8> {
    using WithMinimums::WithMinimums;
    void unpack(int pair, int four, int8x16_t codes[2][8]) const {
        uint8x16_t x[8], h[8];
        L::template load<8>(w.qs, 32 * pair, four, x);
        L::template load<8>(w.qh, 0, four, h);
        S2_UNROLL
        for (int i = 0; i < 8; ++i) {
            codes[0][i] = vorrq_s8(low(x[i]), bits_at_4(h[i], 2 * pair, 0x10));
            codes[1][i] = vorrq_s8(high(x[i]), bits_at_4(h[i], 2 * pair + 1, 0x10));
        }
    }
};

template <class L> struct Q6_K {
    using Block = block_q6_Kx8;
    static constexpr int SCALES = 2;
    const Block & w;

    explicit Q6_K(const Block & w) : w(w) {}
    static int run(int pair, int nibble) { return pair / 2 * 4 + pair % 2 + 2 * nibble; }
    Ints step(int run, int half, int four) const {
        return vmovl_s16(four_of(vmovl_s8(vld1_s8(w.scales + 8 * (2 * run + half))), four));
    }
    void unpack(int pair, int four, int8x16_t codes[2][8]) const {
        uint8x16_t x[8], h[8];
        L::template load<8>(w.ql, 32 * pair, four, x);
        L::template load<8>(w.qh, 32 * (pair / 2), four, h);
        const int8x16_t offset = vdupq_n_s8(32);
        S2_UNROLL
        for (int i = 0; i < 8; ++i) {
            codes[0][i] = vsubq_s8(vorrq_s8(low(x[i]), bits_at_4(h[i], pair % 2 * 2, 0x30)), offset);
            codes[1][i] = vsubq_s8(vorrq_s8(high(x[i]), bits_at_4(h[i], pair % 2 * 2 + 4, 0x30)), offset);
        }
    }
    Vec add(Vec total, Ints products, const Scale256 & row, int four) const {
        return fma(to_float(products), mul(load_half(w.d + 4 * four), splat(row.d)), total);
    }
};

// One run of 32 of four columns, with all rows.
template <class Type, int R>
static inline void multiply_run(const Type & type, int run, int four, const int8x16_t * codes, const Row * rows, int64_t b, Ints * products) {
    const Ints step = type.step(run, 0, four);
    S2_UNROLL
    for (int r = 0; r < R; ++r) {
        const int8_t * y = bytes_of(rows[r]) + QK_K * b + 32 * run;
        if constexpr (Type::SCALES == 1) {
            products[r] = vmlaq_s32(products[r], dot_32(codes, y), step);
        } else {
            products[r] = vmlaq_s32(products[r], dot_16(no_ints(), codes, y), step);
            products[r] = vmlaq_s32(products[r], dot_16(no_ints(), codes + 4, y + 16), type.step(run, 1, four));
        }
    }
}

template <class Type, int R> void blocks_of_256(const Job & job) {
    using Block = typename Type::Block;
    const int64_t n_blocks = job.k / QK_K;
    Row rows[R];
    std::copy(job.rows, job.rows + R, rows);
    for (int64_t column = job.first; column < job.last; column += 8) {
        const auto * w = (const Block *) (job.weights + column * job.column_bytes);
        Vec total[2][R];
        std::fill_n(total[0], 2 * R, zero());
        for (int64_t b = 0; b < n_blocks; ++b) {
            const Type type(w[b]);
            // Sums of eight columns would not fit the registers beside the codes.
            for (int four = 0; four < 2; ++four) {
                Ints products[R];
                std::fill_n(products, R, no_ints());
                for (int pair = 0; pair < 4; ++pair) {
                    constexpr int64_t PART = sizeof(Block) / 8;
                    prefetch<PART>((const char *) (w + b) + AHEAD_BYTES + (4 * four + pair) * PART);
                    int8x16_t codes[2][8];
                    type.unpack(pair, four, codes);
                    multiply_run<Type, R>(type, Type::run(pair, 0), four, codes[0], rows, b, products);
                    multiply_run<Type, R>(type, Type::run(pair, 1), four, codes[1], rows, b, products);
                }
                S2_UNROLL
                for (int r = 0; r < R; ++r) {
                    total[four][r] = type.add(total[four][r], products[r], scales_256(rows[r], job.k)[b], four);
                }
            }
        }
        S2_UNROLL
        for (int r = 0; r < R; ++r) {
            vst1q_f32(job.out[r] + column, total[0][r]);
            vst1q_f32(job.out[r] + column + 4, total[1][r]);
        }
    }
}

// --- what there is

template <class Type> const Family * family_of_32() {
    static const Family family = { Activation::Q8, 0, false, 32, S2_KERNELS(blocks_of_32, Type) };
    return &family;
}

template <class Type> const Family * family_of_256() {
    static const Family family = { Activation::Q8_K, 0, false, QK_K, S2_KERNELS(blocks_of_256, Type) };
    return &family;
}

template <class L> const Family * four_columns(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:  return family_of_32<Q4_0<L>>();
        case GGML_TYPE_Q8_0:  return family_of_32<Q8_0<L>>();
        case GGML_TYPE_MXFP4: return family_of_32<MXFP4<L>>();
        default:              return nullptr;
    }
}

template <class L> const Family * eight_columns(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0: return family_of_32<Q4_0<L>>();
        case GGML_TYPE_Q4_K: return family_of_256<Q4_K<L>>();
        case GGML_TYPE_Q5_K: return family_of_256<Q5_K<L>>();
        case GGML_TYPE_Q6_K: return family_of_256<Q6_K<L>>();
        default:             return nullptr;
    }
}

} // namespace

const Family * neon_interleaved_family(ggml_type type, s2_layout layout) {
    switch (layout) {
        case S2_LAYOUT_4X4: return four_columns<Interleaved<4, 4>>(type);
        case S2_LAYOUT_4X8: return four_columns<Interleaved<4, 8>>(type);
        case S2_LAYOUT_8X4: return eight_columns<Interleaved<8, 4>>(type);
        case S2_LAYOUT_8X8: return eight_columns<Interleaved<8, 8>>(type);
        default:            return nullptr;
    }
}

} // namespace s2

#else

const s2::Family * s2::neon_interleaved_family(ggml_type, s2_layout) { return nullptr; }

#endif
