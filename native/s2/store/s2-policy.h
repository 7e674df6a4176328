#pragma once

// Which experts stay in memory. Pure bookkeeping: no reads, no threads, no clock; the store calls it under its lock, and
// `s2chat bench replay` calls it with recorded routing.
//
// Decayed frequency: an expert's heat is the sum of its credits, each worth less with every token that followed. A layer
// first looks for a victim among its own, and takes from another one only what is much colder there. Each layer keeps a
// floor, so that a burst in one layer does not empty another. Credit is given for accepted tokens only.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace s2 {

struct PolicyParams {
    float decay;         // what a credit is worth after one more token, above 0 and up to 1
    float floor_share;   // of a layer's fair share of the slots that other layers cannot take from it, 0 to 1
    float foreign_share; // of its own coldest expert's heat: an expert of another layer goes only when it has less, 0 to 1
};

PolicyParams default_policy();
bool         is_valid(PolicyParams params);

struct Expert {
    int32_t layer, index; // layer: dense count of MoE layers, not the model's number
};

class Policy {
  public:
    Policy(PolicyParams params, int32_t n_layers, int32_t n_experts);

    // One accepted token used this expert; `weight` scales the credit (1 for plain decode).
    void credit(Expert expert, float weight);

    // `tokens` accepted tokens have passed. Several in one pass: the credits of one, age(1), those of the next.
    void age(float tokens);

    // Residency as the store changes it. `fair_share` is slots of the layer's size class / layers in it.
    void set_resident(Expert expert, bool resident);
    void set_fair_share(int32_t layer, float slots);

    // Experts of a pass that must stay until it is through the layer. Having been pinned counts as one credit until the next
    // age(): the credits of a pass come at its end, and what it has just read must not be the first to go before.
    void set_pinned(Expert expert, bool pinned);

    // The resident expert to give up for `wanted`, from layers where class_of[layer] == class_of[wanted.layer]; false
    // when all are pinned. Floors bind for other layers than wanted.layer, unless nothing else is left.
    bool victim(Expert wanted, const std::vector<int32_t> & class_of, Expert & out) const;

    // The resident expert to give up when there are to be fewer slots: the coldest of the layers of a class, whichever layer
    // it is in. Floors bind unless nothing else is left: set the new fair shares first. False when all are pinned.
    bool surplus(int32_t size_class, const std::vector<int32_t> & class_of, Expert & out) const;

    float heat(Expert expert) const;
    // All heats, [n_layers][n_experts], to save at exit and to warm the next start.
    void get_heat(float * out) const;
    void set_heat(const float * in); // what is no number from 0 up counts as 0

  private:
    struct State {
        float heat     = 0.0f; // in units of a credit / credit_
        bool  resident = false;
        bool  pinned   = false;
        bool  asked    = false; // pinned since the last age()
    };

    struct Layer {
        int32_t         n_resident = 0;
        float           fair_share = 0.0f;
        mutable int32_t coldest; // of the residents that are not pinned, NONE, or UNKNOWN
    };

    static constexpr int32_t NONE = -1, UNKNOWN = -2;

    State &       at(Expert expert) { return states_[size_t(expert.layer) * n_experts_ + expert.index]; }
    const State & at(Expert expert) const { return states_[size_t(expert.layer) * n_experts_ + expert.index]; }

    float   worth(const State & state) const { return state.asked ? state.heat + credit_ : state.heat; }
    bool    above_floor(const Layer & layer) const;
    int32_t coldest(int32_t layer) const;
    void    grew(Expert expert);
    void    shrank(Expert expert);
    void    find_colder(int32_t size_class, const std::vector<int32_t> & class_of, int32_t except, bool floors, float limit,
                        Expert & out) const;

    PolicyParams        params_;
    int32_t             n_experts_;
    float               credit_ = 1.0f; // what a credit adds now; grows with age, so that no heat needs to be touched
    std::vector<State>  states_;        // [n_layers][n_experts]
    std::vector<Layer>  layers_;
    std::vector<Expert> asked_;
};

} // namespace s2
