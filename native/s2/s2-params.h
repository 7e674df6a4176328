#pragma once

#include <cstdint>

class s2_gating;

// What the hooks may change in one context. It lives in llama_cparams, so the graph sees it;
// everything at its default leaves llama.cpp as it is.
struct s2_params {
    int32_t n_expert_used  = 0;     // experts per token for the next decode calls; 0: the model's own k
    int32_t n_rows_exact   = 0;     // passes of up to this many rows use kernels that treat each row alike
    float   scale_restored = 0.0f;  // with fewer experts: how far their weights go to the sum of all k, 0 to 1
    bool    routing        = false; // keep router logits and expert ranks of each pass
    void *  from_memory    = nullptr; // an s2_store: experts it holds in memory are chosen before all others
    s2_gating * gating     = nullptr; // verify passes lean towards the experts their rows share

    // A graph built under one set of these is wrong under another; n_rows_exact is read at compute time only.
    bool same_graph(const s2_params & other) const {
        return n_expert_used == other.n_expert_used && scale_restored == other.scale_restored &&
            routing == other.routing && from_memory == other.from_memory && gating == other.gating;
    }
};
