#include "s2-rows-kernel.h"

#include "../store/s2-experts.h"

#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "quants.h"
#include "simd-mappings.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

namespace s2 {
namespace {

constexpr int64_t PIECE     = 1024;       // activations quantised at a time: whole blocks of every type
constexpr int64_t UNROLL    = 8;          // columns of an interleaved block
constexpr int64_t L2_SHARE  = 192 << 10;  // weights that several groups of rows go over

constexpr size_t padded(size_t bytes) { return GGML_PAD(bytes, 64); }

// --- activations

size_t row_size(ggml_type weights, Activation activation, int64_t k) {
    const int64_t n_128 = (k + 127) / 128;
    switch (activation) {
        case Activation::F32:  return 0;
        case Activation::Q8:   return padded(k + k / 32 * sizeof(Scale32));
        case Activation::Q8x4: return padded(n_128 * 128 + n_128 * sizeof(Scale128));
        case Activation::Q8_K: return padded(k + k / QK_K * sizeof(Scale256));
        case Activation::Own:  return padded(ggml_row_size(ggml_get_type_traits_cpu(weights)->vec_dot_type, k));
    }
    GGML_ABORT("no such activation");
}

size_t largest_row(ggml_type weights, int64_t k) {
    const ggml_type own = ggml_get_type_traits_cpu(weights)->vec_dot_type;
    return std::max({ row_size(weights, Activation::Q8, k), row_size(weights, Activation::Q8x4, k),
                      row_size(weights, Activation::Q8_K, k), padded(ggml_row_size(own, k)) });
}

int32_t sum_of(const int8_t * q, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += q[i];
    }
    return sum;
}

void quantize_q8(const Family & family, const float * x, char * row, int64_t k, int64_t first, int64_t n) {
    block_q8_0 blocks[PIECE / QK8_0];
    quantize_row_q8_0(x + first, blocks, n);
    for (int64_t i = 0; i < n / QK8_0; ++i) {
        const int64_t b     = first / QK8_0 + i;
        const int32_t sum   = sum_of(blocks[i].qs, QK8_0);
        Scale32 &     scale = ((Scale32 *) (row + k))[b];
        memcpy(row + b * QK8_0, blocks[i].qs, QK8_0);
        scale.d = GGML_CPU_FP16_TO_FP32(blocks[i].d);
        if (family.minimum) {
            scale.minimum = scale.d * (float) sum;
        } else {
            scale.excess = -family.offset * sum;
        }
    }
}

void quantize_q8x4(const Family & family, const float * x, char * row, int64_t k, int64_t first, int64_t n) {
    block_q8_0 blocks[PIECE / QK8_0];
    quantize_row_q8_0(x + first, blocks, n);
    for (int64_t i = 0; i < GGML_PAD(n, 128) / QK8_0; ++i) {
        const bool    behind = i >= n / QK8_0;
        const int64_t b      = first / QK8_0 + i;
        char *        bytes  = row + b / 4 * 128 + b % 4 * 16;
        Scale128 &    scale  = ((Scale128 *) (row + GGML_PAD(k, 128)))[b / 4];
        if (behind) {
            memset(bytes, 0, 16);
            memset(bytes + 64, 0, 16);
            scale.d[b % 4] = scale.rest[b % 4] = 0.0f;
            continue;
        }
        const int32_t sum = sum_of(blocks[i].qs, QK8_0);
        memcpy(bytes, blocks[i].qs, 16);
        memcpy(bytes + 64, blocks[i].qs + 16, 16);
        scale.d[b % 4]    = GGML_CPU_FP16_TO_FP32(blocks[i].d);
        scale.rest[b % 4] = scale.d[b % 4] * (float) (family.minimum ? sum : -family.offset * sum);
    }
}

void quantize_q8_K(const float * x, char * row, int64_t k, int64_t first, int64_t n) {
    block_q8_K blocks[PIECE / QK_K];
    quantize_row_q8_K(x + first, blocks, n);
    for (int64_t i = 0; i < n / QK_K; ++i) {
        const int64_t b     = first / QK_K + i;
        Scale256 &    scale = ((Scale256 *) (row + k))[b];
        memcpy(row + b * QK_K, blocks[i].qs, QK_K);
        memcpy(scale.sums, blocks[i].bsums, sizeof(scale.sums));
        scale.d = blocks[i].d;
    }
}

// --- types without kernels of ours: ggml's dot product, a row at a time

void multiply_own(const Job & job, int n_rows) {
    const ggml_vec_dot_t dot = ggml_get_type_traits_cpu(job.type)->vec_dot;
    for (int64_t c = job.first; c < job.last; ++c) {
        for (int r = 0; r < n_rows; ++r) {
            dot((int) job.k, job.out[r] + c, 0, job.weights + c * job.column_bytes, 0, job.rows[r], 0, 1);
        }
    }
}

template <int n> void multiply_own(const Job & job) { multiply_own(job, n); }

const Family OWN = {
    Activation::Own, 0, false, 1,
#if defined(__AVX512VL__) || defined(__aarch64__)
    { multiply_own<1>, multiply_own<2>, multiply_own<3>, multiply_own<4>, multiply_own<5>, multiply_own<6>, multiply_own<7>, multiply_own<8> },
#else
    { multiply_own<1>, multiply_own<2>, multiply_own<3>, multiply_own<4> },
#endif
};

// --- the product

// Which rows of src1 meet which expert. A plain product is one with a single expert.
struct Group {
    int32_t expert, first, count;
};
struct Pair {
    int32_t slot, token;
};

struct Plan {
    const ggml_tensor * weights;
    const ggml_tensor * src1;
    const ggml_tensor * ids;  // null for a plain product
    const Family *      family;
    int64_t             k, columns, n_pairs;
};

const Family * family_of(ggml_type type, s2_layout layout) {
    if (layout == S2_LAYOUT_PLAIN) {
        return plain_family(type);
    }
    const Family * family = avx2_interleaved_family(type, layout);
    return family != nullptr ? family : neon_interleaved_family(type, layout);
}

bool is_product(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID;
}

// Tokens of the pass that meet these weights.
int64_t tokens_of(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT_ID ? node->src[2]->ne[1] : node->src[1]->ne[1];
}

bool is_plain(const ggml_tensor * node) {
    const ggml_tensor * w = node->src[0];
    const ggml_tensor * x = node->src[1];
    const bool by_expert  = node->op == GGML_OP_MUL_MAT_ID;
    return x->type == GGML_TYPE_F32 && node->type == GGML_TYPE_F32
        && w->ne[3] == 1 && x->ne[3] == 1 && (by_expert || (w->ne[2] == 1 && x->ne[2] == 1))
        && w->nb[0] == ggml_type_size(w->type) && w->nb[1] == ggml_row_size(w->type, w->ne[0])
        && x->nb[0] == sizeof(float) && node->nb[0] == sizeof(float);
}

bool is_narrow(const ggml_tensor * node) { return is_plain(node) && tokens_of(node) <= S2_ROWS_MAX; }

int64_t pairs_of(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT_ID ? node->src[2]->ne[0] * node->src[2]->ne[1] : node->src[1]->ne[1];
}

// How many distinct experts there can be.
int64_t groups_of(const ggml_tensor * node) {
    return node->op == GGML_OP_MUL_MAT_ID ? std::min(pairs_of(node), node->src[0]->ne[2]) : 1;
}

using Left = std::atomic<int32_t>;

// Lies in the work buffer.
struct Schedule {
    int32_t * n_groups;
    int32_t * group_of;  // by expert; -1: none
    Group *   groups;
    Pair *    pairs;
    Wanted *  wanted;
    Left *    left;      // chunks of the group not multiplied yet

    static size_t size(const ggml_tensor * node) { return (size_t) Schedule(nullptr, node).end; }

    Schedule(char * base, const ggml_tensor * node) : end(base) {
        const int64_t n = groups_of(node);
        place(n_groups, 1);
        place(group_of, node->op == GGML_OP_MUL_MAT_ID ? node->src[0]->ne[2] : 1);
        place(groups, n);
        place(pairs, pairs_of(node));
        place(wanted, n);
        place(left, n);
    }

    void fill(const Plan & plan) {
        if (plan.ids == nullptr) {
            for (int32_t i = 0; i < plan.n_pairs; ++i) {
                pairs[i] = { i, 0 };
            }
            groups[0] = { 0, 0, (int32_t) plan.n_pairs };
            *n_groups = 1;
            return;
        }
        // Experts in the order they first appear, each with its pairs in order: two passes over few pairs.
        *n_groups = 0;
        std::fill_n(group_of, plan.weights->ne[2], -1);
        for_each_pair(plan, [this](int32_t expert, Pair) { ++find(expert)->count; });
        for (int32_t g = 0, first = 0; g < *n_groups; ++g) {
            groups[g].first = first;
            first += groups[g].count;
            groups[g].count = 0;
        }
        for_each_pair(plan, [this](int32_t expert, Pair pair) {
            Group * group = find(expert);
            pairs[group->first + group->count++] = pair;
        });
    }

    // Tells `experts` what is needed and takes over the order in which it can be had.
    void ask(const Plan & plan, Experts & experts, int32_t n_chunks) {
        const bool narrow = plan.ids->ne[1] <= S2_ROWS_MAX;
        for (int32_t g = 0; g < *n_groups; ++g) {
            wanted[g] = { groups[g].expert, groups[g].count, narrow ? 0 : UINT32_MAX };
            for (int32_t i = 0; narrow && i < groups[g].count; ++i) {
                wanted[g].rows |= 1u << pairs[groups[g].first + i].token;
            }
        }
        experts.begin(wanted, *n_groups, (int32_t) plan.ids->ne[1]);
        // Where each expert's group stands now: the groups move, one cycle of swaps at a time.
        for (int32_t g = 0; g < *n_groups; ++g) {
            const int32_t at = group_of[wanted[g].expert];
            std::swap(groups[g], groups[at]);
            std::swap(group_of[groups[g].expert], group_of[groups[at].expert]);
            new (left + g) Left(n_chunks);
        }
    }

  private:
    char * end;

    template <class T> void place(T *& to, int64_t n) {
        to = (T *) end;
        end += padded(n * sizeof(T));
    }

    template <class Visit> void for_each_pair(const Plan & plan, Visit visit) const {
        const ggml_tensor * ids = plan.ids;
        for (int32_t token = 0; token < ids->ne[1]; ++token) {
            for (int32_t slot = 0; slot < ids->ne[0]; ++slot) {
                const int32_t expert = *(const int32_t *) ((const char *) ids->data + token * ids->nb[1] + slot * ids->nb[0]);
                GGML_ASSERT(expert >= 0 && expert < plan.weights->ne[2]);
                visit(expert, Pair{ slot, token });
            }
        }
    }

    Group * find(int32_t expert) {
        if (group_of[expert] < 0) {
            group_of[expert] = *n_groups;
            groups[(*n_groups)++] = { expert, 0, 0 };
        }
        return groups + group_of[expert];
    }
};

class Product {
  public:
    // `experts` null: the weights lie where the tensor says.
    Product(const ggml_compute_params * params, ggml_tensor * dst, const Family * family, Experts * experts)
        : params(params), dst(dst), experts(experts), plan(plan_of(dst, family)),
          stride(row_size(plan.weights->type, family->activation, plan.k)), schedule((char *) params->wdata, dst),
          rows_base((char *) params->wdata + Schedule::size(dst)) {}

    void run() {
        const int64_t chunk    = chunk_columns();
        const int64_t n_chunks = (plan.columns + chunk - 1) / chunk;
        if (params->ith == 0) {
            schedule.fill(plan);
            if (experts != nullptr) {
                schedule.ask(plan, *experts, (int32_t) n_chunks);
            }
            ggml_threadpool_chunk_set(params->threadpool, params->nth);
        }
        quantize();
        ggml_barrier(params->threadpool);
        if (params->ith == 0 && experts != nullptr) {
            experts->begun();
        }
        for (int64_t i = params->ith; i < n_chunks * *schedule.n_groups; i = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const int64_t first = i % n_chunks * chunk;
            visit((int32_t) (i / n_chunks), first, std::min(first + chunk, plan.columns));
        }
    }

  private:
    static Plan plan_of(const ggml_tensor * dst, const Family * family) {
        const bool by_expert = dst->op == GGML_OP_MUL_MAT_ID;
        return { dst->src[0], dst->src[1], by_expert ? dst->src[2] : nullptr, family, dst->src[0]->ne[0], dst->src[0]->ne[1], pairs_of(dst) };
    }

    // All threads share the rows' pieces.
    void quantize() {
        if (plan.family->activation == Activation::F32) {
            return;
        }
        const ggml_tensor * x        = plan.src1;
        const int64_t       n_pieces = (plan.k + PIECE - 1) / PIECE;
        for (int64_t i = params->ith; i < n_pieces * x->ne[1] * x->ne[2]; i += params->nth) {
            const int64_t row   = i / n_pieces;
            const int64_t first = i % n_pieces * PIECE;
            const int64_t n     = std::min(PIECE, plan.k - first);
            char *        to    = rows_base + row * stride;
            switch (plan.family->activation) {
                case Activation::F32:  break;
                case Activation::Q8:   quantize_q8(*plan.family, floats(row), to, plan.k, first, n); break;
                case Activation::Q8x4: quantize_q8x4(*plan.family, floats(row), to, plan.k, first, n); break;
                case Activation::Q8_K: quantize_q8_K(floats(row), to, plan.k, first, n); break;
                case Activation::Own:  quantize_own(floats(row), to, first, n); break;
            }
        }
    }

    void quantize_own(const float * x, char * row, int64_t first, int64_t n) const {
        const ggml_type type = ggml_get_type_traits_cpu(plan.weights->type)->vec_dot_type;
        ggml_get_type_traits_cpu(type)->from_float(x + first, row + ggml_row_size(type, first), n);
    }

    const float * floats(int64_t row) const {
        const ggml_tensor * x = plan.src1;
        return (const float *) ((const char *) x->data + row % x->ne[1] * x->nb[1] + row / x->ne[1] * x->nb[2]);
    }

    Row row_of(Pair pair) const {
        const int64_t row = plan.ids == nullptr ? pair.slot : pair.slot % plan.src1->ne[1] + pair.token * plan.src1->ne[1];
        if (plan.family->activation == Activation::F32) {
            return (Row) floats(row);
        }
        return rows_base + row * stride;
    }

    float * out_of(Pair pair) const {
        return (float *) ((char *) dst->data + pair.slot * dst->nb[1] + pair.token * dst->nb[2]);
    }

    // Several chunks per thread, so that one that was held up does not hold up all.
    int64_t chunk_columns() const {
        const int64_t wanted = params->nth == 1 ? plan.columns : (plan.columns + 4 * params->nth - 1) / (4 * params->nth);
        return std::max(UNROLL, (wanted + UNROLL - 1) / UNROLL * UNROLL);
    }

    void visit(int32_t g, int64_t first, int64_t last) const {
        const Group & group = schedule.groups[g];
        if (experts == nullptr) {
            multiply(group, (const char *) plan.weights->data + group.expert * plan.weights->nb[2], first, last);
            return;
        }
        const char * weights = experts->wait(group.expert, params->nth);
        if (weights != nullptr) {
            multiply(group, weights, first, last);
        } else {
            clear(group, first, last);
        }
        if (--schedule.left[g] == 0) {
            experts->done(group.expert);
        }
    }

    // The pass is lost, but what follows in it may not meet numbers that are none.
    void clear(const Group & group, int64_t first, int64_t last) const {
        for (int32_t i = 0; i < group.count; ++i) {
            std::fill(out_of(schedule.pairs[group.first + i]) + first, out_of(schedule.pairs[group.first + i]) + last, 0.0f);
        }
    }

    void multiply(const Group & group, const char * base, int64_t first, int64_t last) const {
        const size_t  column = ggml_row_size(plan.weights->type, plan.k);
        const char *  end    = base + plan.columns * column;
        const int64_t fits   = std::max<int64_t>(UNROLL, L2_SHARE / column / UNROLL * UNROLL);
        const int64_t step   = group.count > KERNEL_ROWS ? fits : last - first;
        for (; first < last; first += step) {
            for (int32_t r = 0; r < group.count; r += KERNEL_ROWS) {
                const int32_t n = std::min(group.count - r, KERNEL_ROWS);
                Row     rows[KERNEL_ROWS];
                float * out[KERNEL_ROWS];
                for (int32_t i = 0; i < n; ++i) {
                    const Pair pair = schedule.pairs[group.first + r + i];
                    rows[i] = row_of(pair);
                    out[i]  = out_of(pair);
                }
                plan.family->kernels[n - 1]({ plan.k, base, column, first, std::min(first + step, last), rows, out, plan.weights->type, end });
            }
        }
    }

    const ggml_compute_params * params;
    ggml_tensor *               dst;
    Experts * const             experts;
    const Plan                  plan;
    const size_t                stride;
    Schedule                    schedule;
    char *                      rows_base;
};

size_t work_size(const ggml_tensor * node) {
    const ggml_tensor * x = node->src[1];
    return Schedule::size(node) + largest_row(node->src[0]->type, x->ne[0]) * x->ne[1] * x->ne[2];
}

} // namespace
} // namespace s2

namespace {

std::atomic<void (*)()> s2_between{ nullptr };

} // namespace

void s2_rows_set_between(void (*between)()) { s2_between = between; }

bool s2_rows_forward(const ggml_compute_params * params, ggml_tensor * dst, s2_layout layout) {
    if (!params->use_ref || !s2::is_product(dst) || !s2::is_narrow(dst)) {
        return false;
    }
    const s2::Family * family = s2::family_of(dst->src[0]->type, layout);
    if (family == nullptr || dst->src[0]->ne[0] % family->block != 0) {
        return false;
    }
    GGML_ASSERT(params->wsize >= s2_rows_work_size(dst));
    void (*const between)() = s2_between.load(std::memory_order_relaxed);
    if (between != nullptr && params->ith == 0) {
        between();
    }
    s2::Product(params, dst, family, nullptr).run();
    return true;
}

size_t s2_rows_work_size(const ggml_tensor * node) {
    return s2::is_product(node) && s2::is_narrow(node) ? s2::work_size(node) : 0;
}

void s2_rows_forward_experts(const ggml_compute_params * params, ggml_tensor * dst, s2::Experts & experts) {
    GGML_ASSERT(s2::is_plain(dst) && params->wsize >= s2::work_size(dst));
    const s2::Family * family = s2::family_of(dst->src[0]->type, S2_LAYOUT_PLAIN);
    const bool         ours   = family != nullptr && dst->src[0]->ne[0] % family->block == 0;
    s2::Product(params, dst, ours ? family : &s2::OWN, &experts).run();
}

size_t s2_rows_work_size_experts(const ggml_tensor * node) { return s2::work_size(node); }
