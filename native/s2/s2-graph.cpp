#include "s2-graph.h"

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

ggml_tensor * s2_restore_scale(
        ggml_context    * ctx,
        const s2_params & params,
        ggml_tensor     * weights,
        ggml_tensor     * probs,
        ggml_tensor     * selected_experts,
        int64_t           n_expert_used_full) {
    // The selection is a view on a full ranking, which the full selection is the wider view of.
    ggml_tensor * ranks = selected_experts->view_src;
    const int64_t n_used = selected_experts->ne[0];
    const int64_t n_rows = selected_experts->ne[1];
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
        ggml_tensor                  * selected_experts,
        int                            il) {
    if (!params.routing || selected_experts->view_src == nullptr) {
        return;
    }
    // The selection is a view on the first columns of a full ranking; the ranking owns the memory.
    ggml_tensor * ranks = selected_experts->view_src;
    ggml_set_output(logits);
    ggml_set_output(ranks);
    nodes.push_back({ il, selected_experts->ne[0], logits, ranks });
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
