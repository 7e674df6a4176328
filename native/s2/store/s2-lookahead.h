#pragma once

// Whether a guess about the next layer's experts is worth its read. Pure figures: no reads, no threads, no clock; the store
// feeds it under its lock with what became of earlier guesses.
//
// A router shown the previous layer's input ranks the experts; how often the first, the second and so on is really asked for
// differs by model and by rank. A right guess saves what the pass would have stood waiting. A wrong one that is still being
// read when its layer begins holds up the reads that are needed. Every guess costs the thread that makes it time.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace s2 {

class Lookahead {
  public:
    // Before a layer: whether to ask the next one's router at all. Where no guess is worth it, one look in TRIAL_EACH is made
    // all the same: what was true of an idle disk or a full cache need not stay true.
    bool begin_look();

    // Whether the `rank`-th likeliest expert, of those that are not in memory, is to be read.
    bool worth(size_t rank) const;

    // What became of it; all durations are nanoseconds by which the pass took longer.
    void judged(size_t rank, bool right);          // whether it was asked for, read or not; not of experts in memory
    void looked(int32_t n_guesses, int64_t spent); // a look took so long and led to so many reads
    void waited(int32_t n_missed, int64_t for_missed, int32_t n_guessed, int64_t for_guessed); // in one layer, for experts that
                                                   // were asked for and not guessed, and for those read on a guess
    void wrong(bool in_the_way);                   // a guess nobody asked for; whether its read could not be called off

    float  chance(size_t rank) const { return rank < chances_.size() ? chances_[rank] : 1.0f; }
    double gain(size_t rank) const; // ns that reading it saves in the mean

    static constexpr int32_t TRIAL_EACH = 32;

  private:
    // A mean in which old figures fade.
    struct Mean {
        double n = 0, sum = 0;
        void   add(double n_more, double more);
        double value(double unknown) const { return n > 0 ? sum / n : unknown; }
    };

    bool is_known() const;

    std::vector<float> chances_; // by rank: share of guesses that came true, lately
    Mean               missed_, guessed_, looks_, in_the_way_;
    int32_t            n_looks_ = 0;
    bool               trial_   = false;
};

} // namespace s2
