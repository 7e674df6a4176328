#include "s2.h"

#include "llama-context.h"
#include "store/s2-store.h"

#include <algorithm>
#include <atomic>
#include <cmath>

int32_t s2_abi_version(void) {
    return 8;
}

void s2_set_n_expert_used(llama_context * ctx, int32_t n_expert_used) {
    ctx->s2_get_params().n_expert_used = n_expert_used;
}

void s2_set_scale_restored(llama_context * ctx, float share) {
    ctx->s2_get_params().scale_restored = share;
}

void s2_set_rows_exact(llama_context * ctx, int32_t n_rows) {
    ctx->s2_get_params().n_rows_exact = n_rows;
}

void s2_set_from_memory(llama_context * ctx, s2_store * store) {
    ctx->s2_get_params().from_memory = store;
}

void s2_set_gating(llama_context * ctx, int32_t cap, float beta, const float * confidence, int32_t n_rows) {
    s2_gating & gating = ctx->s2_get_gating();
    gating.set(cap, beta, confidence, n_rows);
    ctx->s2_get_params().gating = cap > 0 ? &gating : nullptr;
}

void s2_set_routing(llama_context * ctx, bool enabled) {
    if (ctx->s2_get_params().routing != enabled) {
        ctx->s2_get_params().routing = enabled;
        ctx->s2_plan_memory_anew();
    }
}

int32_t s2_routing_n_layers(llama_context * ctx) {
    ctx->synchronize();
    return ctx->s2_get_readout().n_layers();
}

bool s2_routing_layer_get(llama_context * ctx, int32_t i, s2_routing_view * view) {
    const s2_readout & readout = ctx->s2_get_readout();
    if (i < 0 || i >= readout.n_layers()) {
        return false;
    }
    const s2_routing_layer & layer = readout.layer(i);
    *view = {
        /*.il       =*/ layer.il,
        /*.n_expert =*/ (int32_t) layer.n_expert,
        /*.n_used   =*/ (int32_t) layer.n_used,
        /*.n_rows   =*/ (int32_t) layer.n_rows,
        /*.logits   =*/ layer.logits.data(),
        /*.ranks    =*/ layer.ranks.data(),
    };
    return true;
}

int64_t s2_routing_best(llama_context * ctx, int32_t n_rows, int32_t n, int32_t * out, int64_t n_out) {
    ctx->synchronize();
    const s2_readout & readout = ctx->s2_get_readout();
    const int64_t      count   = (int64_t) readout.n_layers() * n_rows * n;
    if (count > n_out) {
        return 0;
    }
    for (int32_t i = 0; i < readout.n_layers(); ++i) {
        const s2_routing_layer & layer = readout.layer(i);
        if (layer.n_rows != n_rows || layer.n_expert < n) {
            return 0;
        }
        for (int32_t row = 0; row < n_rows; ++row) {
            out = std::copy_n(layer.ranks.data() + row * layer.n_expert, n, out);
        }
    }
    return count;
}

// Sums in lanes, so that the compiler may use vectors without leave to reorder.
static float sum_of_exp(const float * x, int64_t n, float largest) {
    constexpr int LANES = 16;
    float         sums[LANES] = {};
    int64_t       i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int lane = 0; lane < LANES; ++lane) {
            // exp(d) for d <= 0: 2^(d / ln 2), its fraction by a polynomial, wrong by less than 1e-4
            const float t = std::max((x[i + lane] - largest) * 1.44269504f, -126.0f);
            const float w = (float) (int32_t) (t - 1.0f); // whole part, rounded down
            const float f = t - w;
            const float p = 1.0f + f * (0.69606564f + f * (0.22449434f + f * 0.07944023f));
            union { int32_t i; float f; } power = { ((int32_t) w + 127) << 23 };
            sums[lane] += power.f * p;
        }
    }
    float sum = 0.0f;
    for (float part : sums) {
        sum += part;
    }
    for (; i < n; ++i) {
        sum += expf(x[i] - largest);
    }
    return sum;
}

float s2_token_probability(llama_context * ctx, int32_t row, int32_t token) {
    const float * logits  = llama_get_logits_ith(ctx, row);
    const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    if (logits == nullptr || token < 0 || token >= n_vocab) {
        return 0.0f;
    }
    const float largest = *std::max_element(logits, logits + n_vocab);
    return expf(logits[token] - largest) / sum_of_exp(logits, n_vocab, largest);
}

int64_t s2_compute_bytes(llama_context * ctx) {
    int64_t bytes = 0;
    for (const auto & [buft, part] : ctx->memory_breakdown()) {
        bytes += (int64_t) part.compute;
    }
    return bytes;
}

bool s2_abort_if_set(void * flag) {
    return reinterpret_cast<const std::atomic<int32_t> *>(flag)->load(std::memory_order_relaxed) != 0 || s2_store_any_fault();
}
