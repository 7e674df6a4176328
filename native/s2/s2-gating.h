#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

// Reuse-aware expert gating (S2-MoE, section 4.2): the rows of one verify pass lean towards the experts that all of them
// want most, so that the pass touches fewer. Lossy; only the selection is biased, the mixing weights are not.
//
// Two things are put right. Row 0, the root, is what the model itself has drawn: it counts with weight 1 and is never
// biased, so that a block whose drafts all fail leaves no trace. And each row has a margin of its own.
class s2_gating {
  public:
    // For the passes that follow: `confidence` w_b of each row; `cap` experts, no fewer than k, are preferred by `beta`
    // times a row's own margin. With an infinite `beta` the others cannot be chosen at all: a budget of experts, shared
    // out by the rows' probabilities (MoE-Spec). Passes of another number of rows are left alone, and all of them with
    // cap 0.
    void set(int32_t cap, float beta, const float * confidence, int32_t n_rows);

    // One MoE layer's rows. `margins` [n_rows][n_expert] is what g and a row's margin are taken from, `scores`
    // [n_rows][n_expert] what experts are chosen by, `out` what they are chosen by afterwards. Where `margins` are the
    // logits of `scores`, a margin added to a logit multiplies its score; else both are the same and it is added.
    void bias(
            const float * margins,
            const float * scores,
            bool          logarithmic,
            int64_t       n_expert,
            int64_t       n_rows,
            int64_t       n_used,
            float       * out);

    // What a graph's node is handed of layer `il`; good as long as this is.
    struct Layer {
        s2_gating * gating;
        int64_t     n_used;
        bool        logarithmic;
    };
    Layer * layer(int il, int64_t n_used, bool logarithmic);

  private:
    bool  restricts() const { return std::isinf(beta); }
    const float * wishes(const float * row, int64_t n_expert);
    void  prefer(const float * margins, int64_t n_expert, int64_t n_rows, int64_t count);
    float margin(const float * row, int64_t n_expert, int64_t n_used);

    std::vector<float>   confidence;
    int32_t              cap  = 0;
    float                beta = 0.0f;
    std::map<int, Layer> layers;
    std::vector<float>   wanted;    // g
    std::vector<int32_t> order;     // experts, the preferred ones first
    std::vector<float>   sorted;    // of one row, whatever is made of it
};
