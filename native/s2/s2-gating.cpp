#include "s2-gating.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

void s2_gating::set(int32_t cap_, float beta_, const float * confidence_, int32_t n_rows) {
    cap  = cap_;
    beta = beta_;
    confidence.assign(confidence_, confidence_ + n_rows);
}

s2_gating::Layer * s2_gating::layer(int il, int64_t n_used, bool logarithmic) {
    Layer & found = layers[il];
    found = { this, n_used, logarithmic };
    return &found;
}

// How much a row wants each expert: as its router says, or, where a budget is shared out, by probability.
const float * s2_gating::wishes(const float * row, int64_t n_expert) {
    if (!restricts()) {
        return row;
    }
    sorted.resize(n_expert);
    const float best = *std::max_element(row, row + n_expert);
    float       sum  = 0.0f;
    for (int64_t e = 0; e < n_expert; ++e) {
        sum += sorted[e] = std::exp(row[e] - best);
    }
    for (float & share : sorted) {
        share /= sum;
    }
    return sorted.data();
}

// Sorts E* to the front of `order`: the `count` largest of g_e = sum over b of w_b l_be, the lower index where equal.
void s2_gating::prefer(const float * margins, int64_t n_expert, int64_t n_rows, int64_t count) {
    wanted.assign(n_expert, 0.0f);
    for (int64_t b = 0; b < n_rows; ++b) {
        const float * wish = wishes(margins + b * n_expert, n_expert);
        for (int64_t e = 0; e < n_expert; ++e) {
            wanted[e] += confidence[b] * wish[e];
        }
    }
    order.resize(n_expert);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + count, order.end(), [&](int32_t a, int32_t b) {
        return wanted[a] != wanted[b] ? wanted[a] > wanted[b] : a < b;
    });
}

// l_(1) - l_(k+1): how far the best expert stands above the first that is not chosen.
float s2_gating::margin(const float * row, int64_t n_expert, int64_t n_used) {
    sorted.assign(row, row + n_expert);
    std::nth_element(sorted.begin(), sorted.begin() + n_used, sorted.end(), std::greater<>());
    const float first_out = sorted[n_used];
    return *std::max_element(sorted.begin(), sorted.begin() + n_used) - first_out;
}

void s2_gating::bias(
        const float * margins,
        const float * scores,
        bool          logarithmic,
        int64_t       n_expert,
        int64_t       n_rows,
        int64_t       n_used,
        float       * out) {
    std::memcpy(out, scores, sizeof(float) * n_expert * n_rows);
    if (n_rows != (int64_t) confidence.size() || n_used >= n_expert) {
        return;
    }
    // fewer than k could not be all that a row chooses
    const int64_t preferred = std::min(std::max<int64_t>(cap, n_used), n_expert);
    prefer(margins, n_expert, n_rows, preferred);
    for (int64_t b = 1; b < n_rows; ++b) {
        if (restricts()) {
            for (int64_t i = preferred; i < n_expert; ++i) {
                out[b * n_expert + order[i]] = -INFINITY;
            }
            continue;
        }
        const float lambda = beta * margin(margins + b * n_expert, n_expert, n_used);
        float *     row    = out + b * n_expert;
        for (int64_t i = 0; i < preferred; ++i) {
            float & score = row[order[i]];
            score = logarithmic ? score * std::exp(lambda) : score + lambda;
        }
    }
}
