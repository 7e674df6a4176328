// What the store does for drafts: they choose among what is in memory, and announce what the verify pass will ask for.

#include "s2-store-impl.h"

#include <algorithm>
#include <cmath>

namespace s2 {
namespace {

constexpr int32_t AWAITED_SHARE = 2; // one part in so many of the slots may be kept for a verify pass

} // namespace

void Store::set_drafting(bool on) {
    const Lock lock(mutex);
    drafting = on;
    if (on) {
        forget_awaited(); // of a block whose pass never came
    }
}

// No lock: an expert may go between this look and the product, which then reads it like any other.
void Store::prefer(int32_t layer, const float * scores, float * out) const {
    const Layout::Layer & l = layout.layer(layer);
    float lowest = 0.0f;
    for (int32_t i = 0; i < l.n_expert; ++i) {
        lowest = std::isfinite(scores[i]) ? std::min(lowest, scores[i]) : lowest;
    }
    for (int32_t i = 0; i < l.n_expert; ++i) {
        const Entry & e     = entries[layer][i];
        const bool    there = e.ready.load(std::memory_order_relaxed) == l.all() && !e.streamed.load(std::memory_order_relaxed);
        out[i] = there || !std::isfinite(scores[i]) ? scores[i] : -1e30f / (1.0f + scores[i] - lowest); // behind, in order
    }
}

void Store::announce(int32_t layer, const int32_t * experts, int32_t n) {
    if (whole || sync || !prefetch) {
        return;
    }
    const Lock lock(mutex);
    const size_t      most = slots_of(layer).limit() / AWAITED_SHARE;
    std::vector<Read> reads;
    for (int32_t i = 0; i < n && awaited.size() < most; ++i) { // first what is there, or it would go for what is not
        const Expert x = { layer, experts[i] };
        if (entry(x).slot >= 0 && !entry(x).streamed && !entry(x).awaited) {
            await(x);
        }
    }
    for (int32_t i = 0; i < n && !faulty && awaited.size() < most; ++i) {
        const Expert x = { layer, experts[i] };
        if (entry(x).slot >= 0 || entry(x).passing) {
            continue;
        }
        if (!read_ahead(x, reads)) {
            break;
        }
        await(x);
    }
    submit(reads);
}

// For what the pass asks for now: what is only announced goes for it, if nothing else does.
int32_t Store::slot_on_demand(Expert x) {
    const int32_t slot = slot_for(x);
    if (slot >= 0 || awaited.empty()) {
        return slot;
    }
    forget_awaited();
    return slot_for(x);
}

void Store::await(Expert x) {
    entry(x).awaited = true;
    awaited.push_back(x);
    if (entry(x).resident) {
        policy->set_pinned(x, true);
    }
}

// What a verify pass waits for stays.
void Store::unpin(Expert x) { policy->set_pinned(x, entry(x).awaited && entry(x).resident); }

void Store::forget_awaited() {
    for (Expert x : awaited) {
        Entry & e = entry(x);
        e.awaited = false;
        if (e.resident && !e.held) {
            policy->set_pinned(x, false);
        }
    }
    awaited.clear();
}

void Store::where(uint8_t * out) const {
    for (int32_t l = 0; l < n_layers(); ++l) {
        const Layout::Layer & layer = layout.layer(l);
        for (int32_t i = 0; i < n_expert(); ++i, ++out) {
            const bool exists = i < layer.n_expert;
            const bool there  = exists && entries[l][i].ready.load(std::memory_order_relaxed) == layer.all();
            *out = there ? 2 : exists && entries[l][i].slot.load(std::memory_order_relaxed) >= 0 ? 1 : 0;
        }
    }
}

void Store::asked(int64_t counts[3]) {
    const Lock lock(mutex);
    counts[0] = stats.asked + whole_asked;
    counts[1] = stats.hits + whole_asked;
    counts[2] = stats.late;
}

} // namespace s2
