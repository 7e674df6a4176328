#include "s2-policy.h"
#include "s2-store.h"

#include <cstdint>
#include <vector>

namespace s2 {
namespace {

// What `slots` slots would have held. One size class; an expert asked for in a layer is there at once.
class Replay {
  public:
    Replay(PolicyParams params, int32_t n_layers, int32_t n_expert, int32_t slots)
        : policy_(params, n_layers, n_expert), class_of_(n_layers, 0), resident_(size_t(n_layers) * n_expert, false),
          n_expert_(n_expert), free_(slots) {
        for (int32_t layer = 0; layer < n_layers; ++layer) {
            policy_.set_fair_share(layer, float(slots) / float(n_layers));
        }
    }

    // One token's experts in a layer; returns how many were resident.
    int64_t ask(int32_t layer, const int32_t * experts, int32_t n) {
        int64_t hits = 0;
        each(layer, experts, n, [this](Expert expert) { policy_.set_pinned(expert, true); });
        each(layer, experts, n, [&](Expert expert) { is_resident(expert) ? void(++hits) : take(expert); });
        each(layer, experts, n, [this](Expert expert) { policy_.set_pinned(expert, false); });
        return hits;
    }

    void credit(int32_t layer, const int32_t * experts, int32_t n) {
        each(layer, experts, n, [this](Expert expert) { policy_.credit(expert, 1.0f); });
    }

    void end_token() { policy_.age(1.0f); }

  private:
    template <class Visit> static void each(int32_t layer, const int32_t * experts, int32_t n, Visit visit) {
        for (int32_t i = 0; i < n; ++i) {
            if (experts[i] >= 0) {
                visit(Expert{ layer, experts[i] });
            }
        }
    }

    bool is_resident(Expert expert) const { return resident_[size_t(expert.layer) * n_expert_ + expert.index]; }

    void set_resident(Expert expert, bool resident) {
        resident_[size_t(expert.layer) * n_expert_ + expert.index] = resident;
        policy_.set_resident(expert, resident);
    }

    void take(Expert wanted) {
        Expert victim;
        if (free_ > 0) {
            --free_;
        } else if (policy_.victim(wanted, class_of_, victim)) {
            set_resident(victim, false);
        }
        set_resident(wanted, true);
    }

    Policy               policy_;
    std::vector<int32_t> class_of_;
    std::vector<bool>    resident_;
    int32_t              n_expert_, free_;
};

bool are_experts(const int32_t * experts, int64_t n, int32_t n_expert) {
    for (int64_t i = 0; i < n; ++i) {
        if (experts[i] >= n_expert) {
            return false;
        }
    }
    return true;
}

} // namespace
} // namespace s2

int64_t s2_policy_replay(const int32_t * experts, int32_t n_tokens, int32_t n_layers, int32_t n_used, int32_t n_expert,
                         int32_t slots, int32_t count_from, float decay, float floor_share, float foreign_share) {
    const s2::PolicyParams params =
        decay == 0.0f ? s2::default_policy() : s2::PolicyParams{ decay, floor_share, foreign_share };
    const int64_t per_token = int64_t(n_layers) * n_used;
    if (experts == nullptr || n_tokens < 0 || n_layers < 1 || n_used < 1 || n_expert < n_used || slots < n_used
        || !s2::is_valid(params) || !s2::are_experts(experts, n_tokens * per_token, n_expert)) {
        return -1;
    }
    s2::Replay replay(params, n_layers, n_expert, slots);
    int64_t    hits = 0;
    for (int32_t token = 0; token < n_tokens; ++token, experts += per_token) {
        for (int32_t layer = 0; layer < n_layers; ++layer) {
            const int64_t found = replay.ask(layer, experts + int64_t(layer) * n_used, n_used);
            hits += token >= count_from ? found : 0;
        }
        for (int32_t layer = 0; layer < n_layers; ++layer) {
            replay.credit(layer, experts + int64_t(layer) * n_used, n_used);
        }
        replay.end_token();
    }
    return hits;
}
