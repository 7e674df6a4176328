#pragma once

#include "s2-params.h"

#include "ggml-backend.h"

#include <cstdint>
#include <vector>

// Call sites in llama-graph.cpp and llama-context.cpp.

// The routing of one layer, as tensors of the graph that computes it.
struct s2_routing_node {
    int           il     = -1;
    int64_t       n_used = 0;       // experts per token in this pass
    ggml_tensor * logits = nullptr; // F32 [n_expert, n_rows], router bias included
    ggml_tensor * ranks  = nullptr; // I32 [n_expert, n_rows], every expert, best first
};

// Experts per token for one layer: k of the model, or fewer while drafting.
int64_t s2_n_expert_used(const s2_params & params, int64_t n_expert_used);

// The selection scores F32 [n_expert, n_rows] of one layer, biased in verify passes while params.gating is set, before
// groups of experts are chosen by them. `logits`: where the scores are their softmax and nothing else, they; null where
// a family chooses by other scores, in which the margin is then taken.
ggml_tensor * s2_bias_selection(
        ggml_context    * ctx,
        const s2_params & params,
        ggml_tensor     * scores,
        ggml_tensor     * logits,
        int64_t           n_used,
        int               il);

// The experts of each row, and the ranking of all that they are taken from or would be.
struct s2_selection {
    ggml_tensor * experts = nullptr; // I32 [n_used, n_rows]
    ggml_tensor * ranks   = nullptr; // I32 [n_expert, n_rows], every expert, best first; null: not known
};

// Selects the `n_used` best of `probs` F32 [n_expert, n_rows]. With params.from_memory what the store holds in memory comes
// first, and the others are read only where it holds too few; the ranking stays that of `probs`, and each row's first
// `n_used_full` of it are announced to the store: a verify pass will ask for them.
s2_selection s2_select_experts(
        ggml_context    * ctx,
        const s2_params & params,
        ggml_tensor     * probs,
        int64_t           n_used,
        int64_t           n_used_full,
        int               il);

// The mixing weights of fewer experts than the model's own, scaled per token towards the sum that all
// n_expert_used_full have: all the way at params.scale_restored = 1. For families whose weights are probabilities as
// they stand: with fewer of them the routed branch shrinks beside the rest. Weights of the full count come back
// untouched.
//   weights F32 [1, n_used, n_rows], probs F32 [1, n_expert, n_rows]
ggml_tensor * s2_restore_scale(
        ggml_context    * ctx,
        const s2_params & params,
        ggml_tensor     * weights,
        ggml_tensor     * probs,
        s2_selection      selection,
        int64_t           n_expert_used_full);

// Keeps a layer's router logits and ranks alive until the pass is over.
void s2_keep_routing(
        const s2_params              & params,
        std::vector<s2_routing_node> & nodes,
        ggml_tensor                  * logits,
        s2_selection                   selection,
        int                            il);

// Selects the kernel family of the next pass. Narrow passes take the CPU backend's reference paths: one dot
// product per row and no split of the KV cache, so a row's bits do not depend on the rows beside it.
void s2_select_kernels(const s2_params & params, ggml_backend_t backend_cpu, uint32_t n_rows);
