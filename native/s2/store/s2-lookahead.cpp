#include "s2-lookahead.h"

#include <algorithm>

namespace s2 {
namespace {

constexpr float  FADES  = 0.98f;  // of a chance, per guess
constexpr double KEEPS  = 0.995;  // of a mean, per figure: some hundred layers
constexpr double ENOUGH = 16;     // experts that had to be waited for, before what they took counts
constexpr float  LIKELY = 0.6f;   // until then, and in trials: guesses that come true less often are left alone

} // namespace

void Lookahead::Mean::add(double n_more, double more) {
    n   = KEEPS * n + n_more;
    sum = KEEPS * sum + more;
}

bool Lookahead::begin_look() {
    trial_ = ++n_looks_ % TRIAL_EACH == 0;
    if (trial_ || chances_.empty()) {
        return true;
    }
    for (size_t rank = 0; rank < chances_.size(); ++rank) {
        if (worth(rank)) {
            return true;
        }
    }
    return false;
}

bool Lookahead::worth(size_t rank) const {
    return trial_ || !is_known() ? chance(rank) >= LIKELY : gain(rank) > 0;
}

bool Lookahead::is_known() const { return missed_.n >= ENOUGH && looks_.n > 0; }

// A wrong guess in the way is in the way for as long as a read takes, which is what an expert that was missed had to wait.
double Lookahead::gain(size_t rank) const {
    const double right = chance(rank), miss = missed_.value(0);
    const double saved = std::max(0.0, miss - guessed_.value(0));
    return right * saved - (1 - right) * in_the_way_.value(1) * miss - looks_.value(0);
}

void Lookahead::judged(size_t rank, bool right) {
    if (rank >= chances_.size()) {
        chances_.resize(rank + 1, 1.0f);
    }
    chances_[rank] = FADES * chances_[rank] + (1 - FADES) * (right ? 1.0f : 0.0f);
}

// Looks that led to nothing are paid for by the guesses of others. Without any guess there is nothing to share it out to.
void Lookahead::looked(int32_t n_guesses, int64_t spent) {
    if (n_guesses > 0 || looks_.n > 0) {
        looks_.add(n_guesses, (double) spent);
    }
}

void Lookahead::waited(int32_t n_missed, int64_t for_missed, int32_t n_guessed, int64_t for_guessed) {
    if (n_missed > 0) {
        missed_.add(n_missed, (double) for_missed);
    }
    if (n_guessed > 0) {
        guessed_.add(n_guessed, (double) for_guessed);
    }
}

void Lookahead::wrong(bool in_the_way) { in_the_way_.add(1, in_the_way ? 1 : 0); }

} // namespace s2
