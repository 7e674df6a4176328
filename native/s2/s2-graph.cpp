#include "s2-graph.h"

#include "s2-gating.h"
#include "store/s2-store.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>

int64_t s2_n_expert_used(const s2_params & params, int64_t n_expert_used) {
    return params.n_expert_used > 0 ? std::min<int64_t>(params.n_expert_used, n_expert_used) : n_expert_used;
}

// [1, n, n_rows] to [1, n_rows]
static ggml_tensor * sum_of_weights(ggml_context * ctx, ggml_tensor * weights) {
    ggml_tensor * sum = ggml_sum_rows(ctx, ggml_reshape_2d(ctx, weights, weights->ne[1], weights->ne[2]));
    return ggml_clamp(ctx, sum, 6.103515625e-5f, INFINITY); // as in build_moe_ffn: never a division by zero
}

static void bias_rows(ggml_tensor * dst, const ggml_tensor * scores, const ggml_tensor * margins, int ith, int, void * data) {
    if (ith == 0) {
        const auto & layer = *(const s2_gating::Layer *) data;
        layer.gating->bias((const float *) margins->data, (const float *) scores->data, layer.logarithmic,
                scores->ne[0], scores->ne[1], layer.n_used, (float *) dst->data);
    }
}

ggml_tensor * s2_bias_selection(
        ggml_context    * ctx,
        const s2_params & params,
        ggml_tensor     * scores,
        ggml_tensor     * logits,
        int64_t           n_used,
        int               il) {
    if (params.gating == nullptr || scores->ne[1] < 2) {
        return scores;
    }
    ggml_tensor * by = logits != nullptr ? logits : scores;
    return ggml_map_custom2(ctx, scores, by, bias_rows, 1, params.gating->layer(il, n_used, logits != nullptr));
}

// Runs in the graph of a draft: what is in memory comes first. `full` I32 [n_used_full, n_rows]: what a verify pass would
// choose, read ahead from here on.
static void prefer_resident(ggml_tensor * dst, const ggml_tensor * probs, const ggml_tensor * full, int ith, int, void * layer) {
    if (ith != 0) {
        return;
    }
    for (int64_t row = 0; row < probs->ne[1]; ++row) {
        const auto * scores = (const float *) ((const char *) probs->data + row * probs->nb[1]);
        const auto * wanted = (const int32_t *) ((const char *) full->data + row * full->nb[1]);
        s2_store_prefer(layer, scores, (float *) ((char *) dst->data + row * dst->nb[1]));
        s2_store_announce(layer, wanted, (int32_t) full->ne[0]);
    }
}

s2_selection s2_select_experts(
        ggml_context    * ctx,
        const s2_params & params,
        ggml_tensor     * probs,
        int64_t           n_used,
        int64_t           n_used_full,
        int               il) {
    ggml_tensor * best  = ggml_argsort_top_k(ctx, probs, n_used); // a view on the ranking of all
    ggml_tensor * ranks = best->view_src;
    void *        layer = params.from_memory == nullptr ? nullptr : s2_store_layer((s2_store *) params.from_memory, il);
    if (layer == nullptr) {
        return { best, ranks };
    }
    ggml_tensor * full  = ggml_view_2d(ctx, ranks, n_used_full, ranks->ne[1], ranks->nb[1], 0);
    ggml_tensor * there = ggml_map_custom2(ctx, probs, full, prefer_resident, 1, layer);
    return { ggml_argsort_top_k(ctx, there, n_used), ranks };
}

ggml_tensor * s2_restore_scale(
        ggml_context    * ctx,
        const s2_params & params,
        ggml_tensor     * weights,
        ggml_tensor     * probs,
        s2_selection      selection,
        int64_t           n_expert_used_full) {
    const int64_t n_used = selection.experts->ne[0];
    const int64_t n_rows = selection.experts->ne[1];
    ggml_tensor * ranks  = selection.ranks;
    if (params.scale_restored == 0.0f || n_used >= n_expert_used_full || ranks == nullptr) {
        return weights;
    }
    ggml_tensor * full  = ggml_view_2d(ctx, ranks, n_expert_used_full, n_rows, ranks->nb[1], 0);
    ggml_tensor * scale = ggml_div(ctx, sum_of_weights(ctx, ggml_get_rows(ctx, probs, full)), sum_of_weights(ctx, weights));
    scale = ggml_scale_bias(ctx, scale, params.scale_restored, 1.0f - params.scale_restored);
    ggml_tensor * scaled = ggml_mul(ctx, ggml_reshape_2d(ctx, weights, n_used, n_rows), scale);
    return ggml_reshape_3d(ctx, scaled, 1, n_used, n_rows);
}

void s2_keep_routing(
        const s2_params              & params,
        std::vector<s2_routing_node> & nodes,
        ggml_tensor                  * logits,
        s2_selection                   selection,
        int                            il) {
    if (!params.routing || selection.ranks == nullptr) {
        return;
    }
    ggml_set_output(logits);
    ggml_set_output(selection.ranks);
    nodes.push_back({ il, selection.experts->ne[0], logits, selection.ranks });
}

void s2_select_kernels(const s2_params & params, ggml_backend_t backend_cpu, uint32_t n_rows) {
    if (backend_cpu == nullptr) {
        return;
    }
    auto * reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend_cpu));
    auto * set_use_ref = (decltype(ggml_backend_cpu_set_use_ref) *)
        ggml_backend_reg_get_proc_address(reg, "ggml_backend_cpu_set_use_ref");
    if (set_use_ref) {
        set_use_ref(backend_cpu, (int64_t) n_rows <= params.n_rows_exact);
    }
}
