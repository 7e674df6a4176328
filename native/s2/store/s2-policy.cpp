#include "s2-policy.h"

#include <cmath>
#include <limits>

namespace s2 {
namespace {

constexpr float CREDIT_MAX = 1e12f; // beyond it heats are scaled back: far from overflow, and seldom
constexpr float HEAT_MAX   = 1e6f;  // that set_heat takes

constexpr float NO_LIMIT = std::numeric_limits<float>::infinity();

} // namespace

// Tuned on the first halves of three recorded routings (assets/routes) over six numbers of slots each; `s2chat bench replay`
// shows what it comes to on the second halves. Mean hits of the tuning, %: decay 0.95 68.8, 0.92 69.2, 0.9 69.3, 0.86 69.2,
// 0.82 69.1. With a foreign share of 1, which is one pool for all layers, 68.5; 0.7 69.1, 0.5 69.3, 0.3 69.2, 0.1 69.0: a
// newcomer looks hotter than it is, and where slots are few those of layers with much variety would crowd out the others'. A
// floor alone against that is worth a quarter of it (68.6 at 1) and costs hits where slots are many. Beside a foreign share one of
// 0.5 costs nothing; it is for what the recordings do not hold, bursts. Without the credit for what has been asked (see
// set_pinned) 1 to 4 are lost in most cases. A second, slower decay beside the first gains 0.15: not worth its parameters.
PolicyParams default_policy() {
    return { 0.9f, 0.5f, 0.5f };
}

bool is_valid(PolicyParams params) {
    const auto is_share = [](float value) { return value >= 0.0f && value <= 1.0f; };
    return params.decay > 0.0f && params.decay <= 1.0f && is_share(params.floor_share) && is_share(params.foreign_share);
}

Policy::Policy(PolicyParams params, int32_t n_layers, int32_t n_experts)
    : params_(params), n_experts_(n_experts), states_(size_t(n_layers) * n_experts), layers_(n_layers) {
    for (Layer & layer : layers_) {
        layer.coldest = NONE;
    }
}

void Policy::credit(Expert expert, float weight) {
    at(expert).heat += weight * credit_;
    grew(expert);
}

void Policy::age(float tokens) {
    for (Expert expert : asked_) {
        at(expert).asked = false;
        shrank(expert);
    }
    asked_.clear();
    const float left = std::pow(params_.decay, tokens);
    if (credit_ < CREDIT_MAX * left) {
        credit_ /= left;
        return;
    }
    for (State & state : states_) {
        state.heat *= left / credit_;
    }
    credit_ = 1.0f;
    for (Layer & layer : layers_) {
        layer.coldest = UNKNOWN; // heats that were different may now both be 0
    }
}

void Policy::set_resident(Expert expert, bool resident) {
    State & state = at(expert);
    if (state.resident == resident) {
        return;
    }
    state.resident = resident;
    layers_[expert.layer].n_resident += resident ? 1 : -1;
    resident ? shrank(expert) : grew(expert);
}

void Policy::set_fair_share(int32_t layer, float slots) {
    layers_[layer].fair_share = slots;
}

void Policy::set_pinned(Expert expert, bool pinned) {
    State & state = at(expert);
    state.pinned  = pinned;
    if (!pinned) {
        shrank(expert);
        return;
    }
    if (!state.asked) {
        state.asked = true;
        asked_.push_back(expert);
    }
    grew(expert);
}

bool Policy::victim(Expert wanted, const std::vector<int32_t> & class_of, Expert & out) const {
    const int32_t own        = coldest(wanted.layer);
    const int32_t size_class = class_of[wanted.layer];
    out                      = { wanted.layer, own };
    if (own != NONE) {
        find_colder(size_class, class_of, wanted.layer, true, params_.foreign_share * worth(at(out)), out);
        return true;
    }
    return surplus(size_class, class_of, out);
}

bool Policy::surplus(int32_t size_class, const std::vector<int32_t> & class_of, Expert & out) const {
    out.index = NONE;
    for (bool floors : { true, false }) {
        if (out.index == NONE) {
            find_colder(size_class, class_of, NONE, floors, NO_LIMIT, out);
        }
    }
    return out.index != NONE;
}

float Policy::heat(Expert expert) const {
    return at(expert).heat / credit_;
}

void Policy::get_heat(float * out) const {
    for (const State & state : states_) {
        *out++ = state.heat / credit_;
    }
}

void Policy::set_heat(const float * in) {
    credit_ = 1.0f;
    for (State & state : states_) {
        const float heat = *in++;
        state.heat       = heat > 0.0f ? std::fmin(heat, HEAT_MAX) : 0.0f;
    }
    for (Layer & layer : layers_) {
        layer.coldest = UNKNOWN;
    }
}

bool Policy::above_floor(const Layer & layer) const {
    return float(layer.n_resident) > params_.floor_share * layer.fair_share;
}

int32_t Policy::coldest(int32_t layer) const {
    int32_t & found = layers_[layer].coldest;
    if (found != UNKNOWN) {
        return found;
    }
    const State * states = &states_[size_t(layer) * n_experts_];
    float         least  = NO_LIMIT;
    found                = NONE;
    for (int32_t i = 0; i < n_experts_; ++i) {
        const float value = worth(states[i]);
        if (states[i].resident && !states[i].pinned && value < least) {
            least = value;
            found = i;
        }
    }
    return found;
}

// The expert is worth more than before, or can no longer go: only the coldest itself makes a difference.
void Policy::grew(Expert expert) {
    int32_t & coldest = layers_[expert.layer].coldest;
    if (coldest == expert.index) {
        coldest = UNKNOWN;
    }
}

// The expert is worth less than before, or can now go.
void Policy::shrank(Expert expert) {
    const State & state   = at(expert);
    int32_t &     coldest = layers_[expert.layer].coldest;
    if (coldest == UNKNOWN || !state.resident || state.pinned) {
        return;
    }
    if (coldest == NONE) {
        coldest = expert.index;
        return;
    }
    const float value = worth(state), least = worth(at({ expert.layer, coldest }));
    if (value < least || (value == least && expert.index < coldest)) { // of equals the first, as a search would find it
        coldest = expert.index;
    }
}

// Puts the coldest expert that is worth less than `limit` into `out`, which stays as it is when there is none.
void Policy::find_colder(int32_t size_class, const std::vector<int32_t> & class_of, int32_t except, bool floors, float limit,
                         Expert & out) const {
    for (int32_t layer = 0; layer < int32_t(layers_.size()); ++layer) {
        if (layer == except || class_of[layer] != size_class || (floors && !above_floor(layers_[layer]))) {
            continue;
        }
        const int32_t index = coldest(layer);
        if (index != NONE && worth(at({ layer, index })) < limit) {
            out   = { layer, index };
            limit = worth(at(out));
        }
    }
}

} // namespace s2
