#pragma once

#include "llama.h"

#include <stdbool.h>
#include <stdint.h>

// The C interface of the hooks, read by engine/native.py. Nothing here throws.

#ifdef __cplusplus
extern "C" {
#endif

struct s2_store;

// Changes when a function here changes its meaning. Its presence tells our library from the original.
LLAMA_API int32_t s2_abi_version(void);

// Experts per token (k') for the decode calls that follow; 0 restores the model's own k.
LLAMA_API void s2_set_n_expert_used(struct llama_context * ctx, int32_t n_expert_used);

// How far passes with fewer experts scale their weights to the sum of all k, from 0 (not at all, the default) to 1, in
// families that do not make them sum to one. Right is how alike the experts' outputs are: 0 where they point anywhere,
// 1 where they are the same. Passes with all k experts are the same whatever is set.
LLAMA_API void s2_set_scale_restored(struct llama_context * ctx, float share);

// Passes of up to n_rows rows give each row the same bits whatever stands beside it (CPU backend); 0: off.
LLAMA_API void s2_set_rows_exact(struct llama_context * ctx, int32_t n_rows);

// While drafting: experts that `store` holds in memory are chosen before all others, so that nothing is read, and what the
// model itself would choose is read ahead for the verify pass. Null: off.
LLAMA_API void s2_set_from_memory(struct llama_context * ctx, struct s2_store * store);

// Reuse-aware gating of the passes of n_rows rows, at least 2, that follow (S2-MoE, section 4.2): each row but the first
// leans towards `cap` experts that all rows want most, row b's wish counting confidence[b], by `beta` times its own
// margin between the best expert and the first that is not chosen. With an infinite `beta` they choose among `cap` experts
// alone, those with the most probability over all rows (MoE-Spec). Lossy. cap 0: off.
LLAMA_API void s2_set_gating(struct llama_context * ctx, int32_t cap, float beta, const float * confidence, int32_t n_rows);

// Keep routing for the decode calls that follow.
LLAMA_API void s2_set_routing(struct llama_context * ctx, bool enabled);

// One MoE layer of the last decode call. The pointers are good until the next one.
struct s2_routing_view {
    int32_t         il;
    int32_t         n_expert;
    int32_t         n_used; // experts per token that were used
    int32_t         n_rows;
    const float   * logits; // [n_rows][n_expert]
    const int32_t * ranks;  // [n_rows][n_expert], best first; the first n_used were selected
};

// Number of MoE layers read out by the last decode call; waits for it to finish.
LLAMA_API int32_t s2_routing_n_layers(struct llama_context * ctx);

// Fills `view` with layer i of those; false when there is no such layer.
LLAMA_API bool s2_routing_layer_get(struct llama_context * ctx, int32_t i, struct s2_routing_view * view);

// The first n experts of each layer's and row's ranking in the last decode call, `out` [n_layers][n_rows][n]. Returns how
// many numbers that is, or 0 when there is no room for them in n_out, or no routing of so many rows and experts.
LLAMA_API int64_t s2_routing_best(struct llama_context * ctx, int32_t n_rows, int32_t n, int32_t * out, int64_t n_out);

// The probability of `token` after output row `row` of the last decode call, as the model has it (temperature 1).
LLAMA_API float s2_token_probability(struct llama_context * ctx, int32_t row, int32_t token);

// A sampler for the end of a chain, owned by the chain it is added to. It draws by Gumbel's trick: every token gets a number
// that depends on seed, position and token alone, and the token with the largest logit plus number wins, which it does with its
// probability. Near-equal distributions so draw equal tokens whatever else they disagree in, where one number over a cumulative
// sum draws others as soon as tokens before it change places: drafts are accepted more often. The best among some tokens is the
// best of all where that is one of them. The position grows with each token that is accepted; drawing again at the same one uses
// the same numbers.
LLAMA_API struct llama_sampler * s2_sampler_init_race(uint32_t seed);

// Bytes of the buffers in which the context computes; they are touched only as passes need them.
LLAMA_API int64_t s2_compute_bytes(struct llama_context * ctx);

// An abort callback for llama_set_abort_callback: stops the pass when *(const int32_t *) flag is not 0, or when experts
// could not be read.
// ggml asks once per graph node, too often for a callback into Python.
LLAMA_API bool s2_abort_if_set(void * flag);

#ifdef __cplusplus
}
#endif
