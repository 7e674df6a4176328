// The policy's promises: policy_check. Prints a line per case; exits with 1 when something is wrong.

#include "s2-policy.h"

#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using s2::Expert;
using s2::Policy;
using s2::PolicyParams;

int n_wrong;

void expect(bool right, const std::string & what) {
    if (!right) {
        ++n_wrong;
        std::printf("WRONG: %s\n", what.c_str());
    }
}

bool near(double a, double b) {
    return std::fabs(a - b) <= 1e-4 * std::fmax(std::fabs(a), std::fabs(b)) + 1e-9;
}

const std::vector<int32_t> ONE_CLASS(8, 0);

// Puts the expert in memory with a heat of its own.
void put(Policy & policy, Expert expert, float heat) {
    policy.credit(expert, heat);
    policy.set_resident(expert, true);
}

bool goes(const Policy & policy, Expert wanted, Expert expected) {
    Expert found;
    return policy.victim(wanted, ONE_CLASS, found) && found.layer == expected.layer && found.index == expected.index;
}

void heats_decay() {
    Policy policy({ 0.9f, 0.0f, 1.0f }, 2, 4);
    policy.credit({ 1, 2 }, 1.0f);
    policy.age(1.0f);
    policy.credit({ 1, 2 }, 2.0f);
    policy.age(2.5f);
    expect(near(policy.heat({ 1, 2 }), 2.9 * std::pow(0.9, 2.5)), "a credit is worth decay^tokens");
    expect(policy.heat({ 1, 1 }) == 0.0f, "without a credit no heat");
    for (int token = 0; token < 20000; ++token) {
        policy.credit({ 0, 0 }, 1.0f);
        policy.age(1.0f);
    }
    expect(near(policy.heat({ 0, 0 }), 9.0), "heat converges over many tokens");
    policy.age(1e9f);
    expect(policy.heat({ 0, 0 }) == 0.0f, "heat ends");
    policy.credit({ 0, 0 }, 1.0f);
    expect(policy.heat({ 0, 0 }) == 1.0f, "and begins again");
    Policy keeping({ 1.0f, 0.0f, 1.0f }, 1, 1);
    keeping.credit({ 0, 0 }, 1.0f);
    keeping.age(1e6f);
    expect(keeping.heat({ 0, 0 }) == 1.0f, "a decay of 1 keeps all");
}

void heats_travel() {
    Policy             from({ 0.9f, 0.0f, 1.0f }, 3, 5), to({ 0.9f, 0.0f, 1.0f }, 3, 5);
    std::vector<float> heats(15), again(15);
    for (int i = 0; i < 40; ++i) {
        from.credit({ i % 3, i % 5 }, 1.0f);
        from.age(1.0f);
    }
    from.get_heat(heats.data());
    expect(heats[1 * 5 + 4] == from.heat({ 1, 4 }), "[layer][expert]");
    to.credit({ 2, 2 }, 5.0f);
    to.age(100.0f);
    to.set_heat(heats.data());
    to.get_heat(again.data());
    expect(heats == again, "what was saved comes back");
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();
    to.set_heat(std::vector<float>{ nan, -1.0f, infinite, 1e30f, 2.0f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }.data());
    to.get_heat(again.data());
    expect(again[0] == 0.0f && again[1] == 0.0f && again[4] == 2.0f, "no number from 0 up: 0");
    expect(again[2] < 1e7f && again[3] < 1e7f, "what is far too hot is bounded");
}

void own_before_others() {
    Policy policy({ 0.9f, 0.0f, 0.5f }, 2, 8);
    put(policy, { 0, 1 }, 4.0f);
    put(policy, { 0, 2 }, 5.0f);
    put(policy, { 1, 1 }, 2.5f);
    put(policy, { 1, 2 }, 9.0f);
    expect(goes(policy, { 0, 7 }, { 0, 1 }), "another layer's is not half as hot, still the own goes");
    expect(goes(policy, { 1, 7 }, { 1, 1 }), "the own is the coldest");
    policy.credit({ 0, 1 }, 1.5f);
    expect(goes(policy, { 0, 7 }, { 0, 2 }), "the own coldest is another one now");
    policy.credit({ 0, 2 }, 5.0f);
    expect(goes(policy, { 0, 7 }, { 1, 1 }), "less than half as hot as the own");
}

void floors_hold() {
    Policy policy({ 0.9f, 0.5f, 1.0f }, 3, 8);
    for (int32_t i = 0; i < 6; ++i) {
        put(policy, { 0, i }, 10.0f + i);
    }
    put(policy, { 1, 0 }, 1.0f);
    put(policy, { 1, 1 }, 1.5f);
    put(policy, { 1, 2 }, 2.0f);
    for (int32_t layer = 0; layer < 3; ++layer) {
        policy.set_fair_share(layer, 4.0f);
    }
    expect(goes(policy, { 0, 7 }, { 1, 0 }), "above its floor a layer gives");
    policy.set_resident({ 1, 0 }, false);
    expect(goes(policy, { 0, 7 }, { 0, 0 }), "at its floor it does not");
    expect(goes(policy, { 1, 7 }, { 1, 1 }), "but may trade its own");
    expect(goes(policy, { 2, 7 }, { 0, 0 }), "nor to a layer that has nothing");
    Expert found;
    expect(policy.surplus(0, ONE_CLASS, found) && found.layer == 0 && found.index == 0, "nor when slots go");
    for (int32_t i = 0; i < 6; ++i) {
        policy.set_pinned({ 0, i }, true);
    }
    expect(goes(policy, { 2, 7 }, { 1, 1 }), "unless nothing else is left");
    expect(policy.surplus(0, ONE_CLASS, found) && found.layer == 1 && found.index == 1, "also when slots go");
    expect(!policy.surplus(1, ONE_CLASS, found), "not from a class without layers");
}

void pinned_stay() {
    Policy policy({ 0.9f, 0.0f, 1.0f }, 2, 4);
    Expert found;
    expect(!policy.victim({ 0, 0 }, ONE_CLASS, found), "nothing is resident");
    put(policy, { 0, 1 }, 1.0f);
    put(policy, { 1, 1 }, 2.0f);
    policy.set_pinned({ 0, 1 }, true);
    expect(goes(policy, { 0, 0 }, { 1, 1 }), "the pinned one stays");
    policy.set_pinned({ 1, 1 }, true);
    expect(!policy.victim({ 0, 0 }, ONE_CLASS, found), "all are pinned");
    policy.set_pinned({ 0, 1 }, false);
    expect(goes(policy, { 1, 0 }, { 0, 1 }), "no longer pinned");
    const std::vector<int32_t> classes = { 0, 1 };
    expect(!policy.victim({ 1, 0 }, classes, found), "another size does not fit");
}

void asked_counts_until_the_token_ends() {
    Policy policy({ 1.0f, 0.0f, 1.0f }, 1, 4);
    put(policy, { 0, 0 }, 0.5f);
    policy.set_pinned({ 0, 1 }, true);
    policy.set_resident({ 0, 1 }, true);
    policy.set_pinned({ 0, 1 }, false);
    expect(goes(policy, { 0, 3 }, { 0, 0 }), "what has just been asked for counts as used once");
    expect(policy.heat({ 0, 1 }) == 0.0f, "which is no heat");
    policy.age(1.0f);
    expect(goes(policy, { 0, 3 }, { 0, 1 }), "and was not accepted");
}

// The same, the slow way.
class Model {
  public:
    Model(PolicyParams params, int32_t n_layers, int32_t n_experts)
        : fair_share(n_layers), params_(params), states_(n_layers, std::vector<State>(n_experts)) {}

    struct State {
        double heat     = 0.0;
        bool   resident = false, pinned = false, asked = false;
    };

    State & at(Expert expert) { return states_[expert.layer][expert.index]; }

    std::vector<float> fair_share;

    void age(double tokens) {
        for (auto & layer : states_) {
            for (State & state : layer) {
                state.heat *= std::pow((double) params_.decay, tokens);
                state.asked = false;
            }
        }
    }

    // Whether giving up `found` (or nothing) is right but for rounding; `own` < 0: slots go.
    bool agrees(int32_t own, int32_t size_class, const std::vector<int32_t> & class_of, bool any, Expert found) {
        const double mine = own < 0 ? NEVER : coldest(own);
        if (mine < NEVER) {
            const double theirs = others(own, size_class, class_of, true);
            const double limit  = params_.foreign_share * mine;
            if (!any || !may_go(found)) {
                return false;
            }
            const double value = worth(at(found));
            if (near(theirs, limit)) {
                return near(value, mine) || near(value, theirs);
            }
            return theirs < limit ? found.layer != own && near(value, theirs) : found.layer == own && near(value, mine);
        }
        const double with = others(own, size_class, class_of, true), without = others(own, size_class, class_of, false);
        const double least = with < NEVER ? with : without;
        return least < NEVER ? any && may_go(found) && near(worth(at(found)), least) : !any;
    }

  private:
    static constexpr double NEVER = 1e300;

    bool   may_go(Expert expert) { return at(expert).resident && !at(expert).pinned; }
    double worth(const State & state) const { return state.heat + (state.asked ? 1.0 : 0.0); }

    double coldest(int32_t layer) const {
        double least = NEVER;
        for (const State & state : states_[layer]) {
            if (state.resident && !state.pinned) {
                least = std::fmin(least, worth(state));
            }
        }
        return least;
    }

    double others(int32_t own, int32_t size_class, const std::vector<int32_t> & class_of, bool floors) const {
        double least = NEVER;
        for (int32_t layer = 0; layer < (int32_t) states_.size(); ++layer) {
            int32_t n = 0;
            for (const State & state : states_[layer]) {
                n += state.resident;
            }
            const bool above = (float) n > params_.floor_share * fair_share[layer];
            if (layer != own && class_of[layer] == size_class && (!floors || above)) {
                least = std::fmin(least, coldest(layer));
            }
        }
        return least;
    }

    PolicyParams                    params_;
    std::vector<std::vector<State>> states_;
};

void anything_goes(uint32_t seed) {
    constexpr int32_t          N_LAYERS = 5, N_EXPERTS = 9;
    const std::vector<int32_t> class_of = { 0, 1, 0, 0, 1 };
    std::mt19937               random(seed);
    const auto pick = [&](int32_t n) { return (int32_t) (random() % (uint32_t) n); };
    const PolicyParams params = { 0.6f + 0.1f * (float) pick(5), 0.25f * (float) pick(5), 0.25f * (float) pick(5) };
    Policy             policy(params, N_LAYERS, N_EXPERTS);
    Model              model(params, N_LAYERS, N_EXPERTS);
    for (int step = 0; step < 4000; ++step) {
        const Expert   expert = { pick(N_LAYERS), pick(N_EXPERTS) };
        Model::State & state  = model.at(expert);
        switch (pick(9)) {
            case 0:
            case 1: {
                const float weight = 0.01f * (float) (1 + pick(300));
                policy.credit(expert, weight);
                state.heat += weight;
                break;
            }
            case 2: {
                const float tokens = (float) pick(3);
                policy.age(tokens);
                model.age(tokens);
                break;
            }
            case 3:
            case 4:
                state.resident = pick(3) > 0;
                policy.set_resident(expert, state.resident);
                break;
            case 5:
                state.pinned = pick(3) == 0;
                state.asked |= state.pinned;
                policy.set_pinned(expert, state.pinned);
                break;
            case 6:
                model.fair_share[expert.layer] = (float) pick(9);
                policy.set_fair_share(expert.layer, model.fair_share[expert.layer]);
                break;
            default: {
                Expert     found = { 0, 0 };
                const bool slots_go = pick(2) == 0;
                const int32_t size_class = class_of[expert.layer];
                const bool any = slots_go ? policy.surplus(size_class, class_of, found) : policy.victim(expert, class_of, found);
                if (!model.agrees(slots_go ? -1 : expert.layer, size_class, class_of, any, found)) {
                    expect(false, "seed " + std::to_string(seed) + ", step " + std::to_string(step));
                    return;
                }
                expect(near(policy.heat(expert), state.heat), "heat, seed " + std::to_string(seed));
            }
        }
    }
}

// 96 layers of 512 experts, half of them resident, 8 used: what all calls of a token cost, per expert that was missing.
// Looking at every expert for every victim would take several times the bound.
void is_fast() {
    constexpr int32_t          N_LAYERS = 96, N_EXPERTS = 512, N_USED = 8, TOKENS = 50;
    const std::vector<int32_t> class_of(N_LAYERS, 0);
    Policy                     policy(s2::default_policy(), N_LAYERS, N_EXPERTS);
    std::mt19937               random(1);
    std::vector<bool>          resident(N_LAYERS * N_EXPERTS);
    for (int32_t i = 0; i < N_LAYERS * N_EXPERTS; i += 2) {
        put(policy, { i / N_EXPERTS, i % N_EXPERTS }, (float) (random() % 1000) / 1e4f);
        resident[i] = true;
    }
    int64_t            n_missing = 0;
    const std::clock_t start     = std::clock();
    for (int token = 0; token < TOKENS; ++token) {
        for (int32_t layer = 0; layer < N_LAYERS; ++layer) {
            Expert asked[N_USED];
            for (Expert & expert : asked) {
                expert = { layer, (int32_t) (random() % N_EXPERTS) };
                policy.set_pinned(expert, true);
            }
            for (Expert expert : asked) {
                Expert gone;
                if (!resident[layer * N_EXPERTS + expert.index] && policy.victim(expert, class_of, gone)) {
                    policy.set_resident(gone, false);
                    policy.set_resident(expert, true);
                    resident[gone.layer * N_EXPERTS + gone.index] = false;
                    resident[layer * N_EXPERTS + expert.index]    = true;
                    ++n_missing;
                }
            }
            for (Expert expert : asked) {
                policy.set_pinned(expert, false);
                policy.credit(expert, 1.0f);
            }
        }
        policy.age(1.0f);
    }
    const double each = 1e6 * (double) (std::clock() - start) / CLOCKS_PER_SEC / (double) n_missing;
    std::printf("%.1f us of CPU time per missing expert\n", each);
#if !defined(__SANITIZE_ADDRESS__)
    expect(each < 20.0, "a victim is found without a search of everything");
#endif
    expect(n_missing > TOKENS * N_LAYERS, "experts were missing");
}

} // namespace

int main() {
    const std::pair<const char *, void (*)()> cases[] = {
        { "heats decay", heats_decay },
        { "heats travel", heats_travel },
        { "own before others", own_before_others },
        { "floors hold", floors_hold },
        { "pinned stay", pinned_stay },
        { "asked counts until the token ends", asked_counts_until_the_token_ends },
        { "anything goes", [] {
             for (uint32_t seed = 0; seed < 50; ++seed) {
                 anything_goes(seed);
             }
         } },
        { "is fast", is_fast },
    };
    for (const auto & [name, check] : cases) {
        const int before = n_wrong;
        check();
        std::printf("%s: %s\n", name, n_wrong == before ? "right" : "wrong");
    }
    return n_wrong == 0 ? 0 : 1;
}
