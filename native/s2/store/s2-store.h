#pragma once

// The expert store: experts live in a fixed number of slots under a budget of bytes; missing ones are read from disk while
// others are multiplied. This is the C interface; it needs nothing of ggml or llama.cpp.

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define S2_STORE_API __attribute__((visibility("default")))
#else
#define S2_STORE_API
#endif

struct s2_store;

// One expert tensor of the model. Expert e's bytes are at offset + e * stride of the file: in a GGUF file stride is
// expert_bytes, in a packed one the length of a record.
struct s2_store_tensor {
    const char * name;         // "blk.3.ffn_up_exps.weight"
    int32_t      layer;        // the model's number of it
    int32_t      n_expert;
    int64_t      expert_bytes;
    int32_t      file;         // index into files
    int64_t      offset;
    int64_t      stride;
};

enum s2_store_method { S2_READ_AUTO, S2_READ_BUFFERED, S2_READ_DIRECT, S2_READ_URING, S2_READ_URING_BUFFERED };

struct s2_store_config {
    const char * const *           files;
    int32_t                        n_files;
    const struct s2_store_tensor * tensors;  // those of a layer together, in the order in which they are multiplied
    int32_t                        n_tensors;
    int64_t                        bytes;    // for slots; may be changed later
    int32_t                        method;   // enum s2_store_method
    int32_t                        depth;    // 0: default
    bool                           sync;     // for comparison: no prefetch, and a layer waits for all of its reads first
};

struct s2_store_stats {
    int64_t bytes;             // of slots now
    int64_t n_slots;           // experts that fit
    int64_t n_resident;        // experts in memory
    int64_t n_experts;         // experts of the model, all layers
    int64_t passes;
    int64_t asked;             // distinct (layer, expert) asked for, summed over passes
    int64_t hits;              // of these resident when the layer asked
    int64_t late;              // of these in flight when the layer asked: misses
    int64_t reads;             // experts read, whole or a tensor of them
    int64_t bytes_read;
    int64_t bytes_prefetched;  // part of bytes_read
    int64_t prefetched;        // experts
    int64_t prefetch_used;     // of these asked for before they were given up
    int64_t evicted;
    int64_t stall_ns;          // time the pass stood waiting for reads
};

// Null on failure, and `error` says why.
S2_STORE_API struct s2_store * s2_store_new(const struct s2_store_config * config, char * error, size_t n_error);
S2_STORE_API void              s2_store_free(struct s2_store * store);

// Models loaded from now on by any thread keep their expert tensors in this store; null: as usual. The store must outlive them.
S2_STORE_API void s2_store_attach(struct s2_store * store);

// Least bytes with which any pass works, and bytes with which every expert is resident.
S2_STORE_API int64_t s2_store_bytes_min(const struct s2_store * store);
S2_STORE_API int64_t s2_store_bytes_all(const struct s2_store * store);

// Gives slots back to the system or takes more, also while a pass runs; returns the bytes now in use.
S2_STORE_API int64_t s2_store_resize(struct s2_store * store, int64_t bytes);

// Reads the hottest experts, or all that fit, in the background.
S2_STORE_API void s2_store_warm(struct s2_store * store);

// [n_layers][n_expert] floats, layers in the order of the tensors.
S2_STORE_API int32_t s2_store_n_layers(const struct s2_store * store);
S2_STORE_API int32_t s2_store_n_expert(const struct s2_store * store);
S2_STORE_API void    s2_store_get_heat(struct s2_store * store, float * heat);
S2_STORE_API void    s2_store_set_heat(struct s2_store * store, const float * heat);

// The pass is over, whatever became of it: nothing it used is held any longer.
S2_STORE_API void s2_store_end_pass(struct s2_store * store);

// Passes that follow are drafts (or no longer): they are neither counted nor credited, they look ahead for nobody, and what
// was announced for the verify pass after them stays.
S2_STORE_API void s2_store_set_drafting(struct s2_store * store, bool on);

// Whether anything is read before it is asked for: by guesses at the next layer, or because a draft announced it.
S2_STORE_API void s2_store_set_prefetch(struct s2_store * store, bool on);

// The layer with the model's number `layer`, for the next two; null when it has no experts here.
S2_STORE_API void * s2_store_layer(struct s2_store * store, int32_t layer);

// Scores [n_expert] under which the experts in memory come before all others, each part in its own order.
S2_STORE_API void s2_store_prefer(void * layer, const float * scores, float * out);

// The verify pass will likely ask for these, likeliest first: what is missing is read, what is there stays.
S2_STORE_API void s2_store_announce(void * layer, const int32_t * experts, int32_t n);

// Where each expert is, [n_layers][n_expert]: 0 on disk, 1 on its way, 2 in memory. Whether all are there and stay.
S2_STORE_API void s2_store_where(struct s2_store * store, uint8_t * where);
S2_STORE_API bool s2_store_is_whole(struct s2_store * store);

// Asked, hits and late of the figures below.
S2_STORE_API void s2_store_asked(struct s2_store * store, int64_t counts[3]);

// Of the last pass, the first n_rows tokens were accepted: their experts are credited. Passes that nobody speaks for leave
// no trace in the heat, as drafts should. While every expert is in memory, one of 16 accepted passes is credited: enough to
// know who goes first when there are to be fewer slots, and what the next start reads first.
S2_STORE_API void s2_store_credit(struct s2_store * store, int32_t n_rows);

S2_STORE_API void         s2_store_get_stats(struct s2_store * store, struct s2_store_stats * stats);
S2_STORE_API const char * s2_store_method_reason(struct s2_store * store); // how it reads and why
S2_STORE_API int32_t      s2_store_method(struct s2_store * store);

// A read that failed ends the pass. After s2_store_end_pass: copies what went wrong, naming the file, and forgets it; false
// when nothing did.
S2_STORE_API bool s2_store_take_fault(struct s2_store * store, char * text, size_t n_text);

// Whether any store has a fault that nobody took yet: decode passes look here before every node.
S2_STORE_API bool s2_store_any_fault(void);

// For tests: every read is held back up to max_us (seeded), each n-th fails with an I/O error (0: none), and up to `evictions`
// random experts that nothing holds are given up before each layer.
S2_STORE_API void s2_store_torment(struct s2_store * store, uint64_t seed, int32_t max_us, int32_t fail_each, int32_t evictions);

// Replays recorded routing through the policy alone: [n_tokens][n_layers][n_used] distinct experts, negative: none; `slots`
// experts fit. Tokens before `count_from` warm up only. The last three are PolicyParams of s2-policy.h; with a decay of 0 the
// default ones hold. Returns hits; -1 for bad arguments.
S2_STORE_API int64_t s2_policy_replay(const int32_t * experts, int32_t n_tokens, int32_t n_layers, int32_t n_used, int32_t n_expert,
                                      int32_t slots, int32_t count_from, float decay, float floor_share, float foreign_share);

#ifdef __cplusplus
}
#endif
