#include "s2.h"

#include "llama-context.h"
#include "store/s2-store.h"

#include <atomic>

int32_t s2_abi_version(void) {
    return 3;
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
