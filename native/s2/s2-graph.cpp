#include "s2-graph.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>

int64_t s2_n_expert_used(const s2_params & params, int64_t n_expert_used) {
    return params.n_expert_used > 0 ? std::min<int64_t>(params.n_expert_used, n_expert_used) : n_expert_used;
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
