// The look-ahead's promises: lookahead_check. Prints a line per case; exits with 1 when something is wrong.

#include "s2-lookahead.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using s2::Lookahead;

constexpr int64_t US = 1000; // ns

int n_wrong;

void expect(bool right, const std::string & what) {
    if (!right) {
        ++n_wrong;
        std::printf("WRONG: %s\n", what.c_str());
    }
}

void judge(Lookahead & ahead, size_t rank, int right, int of, int rounds = 200) {
    for (int i = 0; i < rounds * of; ++i) {
        ahead.judged(rank, i % of < right);
    }
}

// Figures of a machine: what it takes to miss an expert, to wait for one that was guessed, to make a guess, and how many of
// four wrong guesses are in the way.
void measure(Lookahead & ahead, int64_t miss, int64_t late, int64_t look, int in_the_way) {
    for (int i = 0; i < 4000; ++i) {
        ahead.waited(1, miss, 1, late);
        ahead.looked(1, look);
        ahead.wrong(i % 4 < in_the_way);
    }
}

void begins_with_likely_ones() {
    Lookahead ahead;
    expect(ahead.begin_look() && ahead.worth(0) && ahead.worth(7), "nothing is known, and nothing is tried");
    judge(ahead, 1, 3, 10);
    judge(ahead, 2, 8, 10);
    expect(!ahead.worth(1) && ahead.worth(2), "seldom right is tried, often right is not");
    ahead.waited(3, 3, 0, 0); // too few to count
    ahead.looked(1, 1000 * US);
    expect(ahead.worth(2), "a few figures decide");
}

void gains_are_what_was_measured() {
    Lookahead ahead;
    judge(ahead, 0, 3, 4);
    measure(ahead, 1000 * US, 200 * US, 50 * US, 1);
    const double right = ahead.chance(0), expected = right * 800 * US - (1 - right) * 0.25 * 1000 * US - 50 * US;
    expect(std::fabs(right - 0.75) < 0.03, "three of four came true: " + std::to_string(right));
    expect(std::fabs(ahead.gain(0) - expected) < 15 * US, "gain " + std::to_string(ahead.gain(0)) + ", not " + std::to_string(expected));
}

void ranks_differ() {
    Lookahead ahead;
    for (size_t rank = 0; rank < 8; ++rank) {
        judge(ahead, rank, 9 - (int) rank, 10);
    }
    measure(ahead, 1000 * US, 0, 20 * US, 2);
    for (size_t rank = 0; rank < 8; ++rank) { // p - (1 - p) / 2 > 0.02 from p = 0.35
        expect(ahead.worth(rank) == (rank <= 5), "rank " + std::to_string(rank));
    }
}

// Each of these makes the same guess, right two times of three, a loss.
void not_worth_it() {
    const auto gain = [](int64_t miss, int64_t late, int64_t look, int in_the_way) {
        Lookahead ahead;
        judge(ahead, 0, 2, 3);
        measure(ahead, miss, late, look, in_the_way);
        expect(ahead.worth(0) == (ahead.gain(0) > 0), "worth it is what gains");
        return ahead.gain(0);
    };
    expect(gain(500 * US, 100 * US, 20 * US, 1) > 0, "a good guess");
    expect(gain(20 * US, 1 * US, 20 * US, 1) < 0, "a miss takes no longer than a look");
    expect(gain(500 * US, 490 * US, 20 * US, 1) < 0, "guesses come too late");
    expect(gain(500 * US, 400 * US, 20 * US, 4) < 0, "wrong guesses are in the way");
}

// Where nothing is worth it the router is left alone, but for trials; and these notice when it is again.
void looks_only_where_it_pays() {
    Lookahead ahead;
    judge(ahead, 0, 4, 5);
    measure(ahead, 10 * US, 0, 50 * US, 0);
    int n_looks = 0;
    for (int i = 0; i < 10 * Lookahead::TRIAL_EACH; ++i) {
        if (ahead.begin_look()) {
            ++n_looks;
            expect(ahead.worth(0), "a trial reads nothing");
        }
    }
    expect(n_looks == 10, std::to_string(n_looks) + " looks instead of ten trials");
    for (int i = 0; i < 400; ++i) { // the disk is slow now
        ahead.waited(1, 2000 * US, 0, 0);
    }
    expect(ahead.begin_look() && ahead.worth(0), "what has become worth it is still left alone");
    for (int i = 0; i < 2000; ++i) { // and now all that is guessed is in memory already
        ahead.looked(0, 50 * US);
    }
    n_looks = 0;
    for (int i = 0; i < Lookahead::TRIAL_EACH; ++i) {
        n_looks += ahead.begin_look();
    }
    expect(n_looks == 1, "looks that lead to nothing cost nothing");
}

// A machine: `miss` ns for an expert that is read when asked for, of which `late` are left with a guess, `look` for a guess.
struct Machine {
    double miss, late, look, in_the_way, best, decline; // best: chance of rank 0, then less by a factor per rank
};

enum class Guess { Never, Always, Judged };

// Time that passes lose to reads and guesses. In each layer some of four likely experts are missing, and as many unlikely.
double lost(const Machine & machine, Guess guess) {
    constexpr int LAYERS = 20000, RANKS = 4;
    std::mt19937_64                        random(1);
    std::uniform_real_distribution<double> share(0, 1);
    Lookahead ahead;
    double    ns = 0;
    for (int layer = 0; layer < LAYERS; ++layer) {
        const bool looks = guess == Guess::Always || (guess == Guess::Judged && ahead.begin_look());
        int    n_missed = 1, n_guessed = 0, n_guesses = 0;
        double for_missed = machine.miss, for_guessed = 0;
        for (int rank = 0; rank < RANKS; ++rank) {
            const bool   there = share(random) < 0.6, right = share(random) < machine.best * std::pow(machine.decline, rank);
            const bool   in_the_way = share(random) < machine.in_the_way;
            if (there) {
                continue;
            }
            const bool reads = looks && (guess == Guess::Always || ahead.worth(rank));
            n_guesses += reads;
            if (right) {
                (reads ? n_guessed : n_missed) += 1;
                (reads ? for_guessed : for_missed) += reads ? machine.late : machine.miss;
            } else if (reads) {
                ahead.wrong(in_the_way);
                for_missed += in_the_way ? machine.miss : 0;
            }
            if (looks) {
                ahead.judged(rank, right);
            }
        }
        const double spent = n_guesses * machine.look;
        if (looks) {
            ahead.looked(n_guesses, (int64_t) spent);
        }
        ahead.waited(n_missed, (int64_t) for_missed, n_guessed, (int64_t) for_guessed);
        ns += for_missed + for_guessed + spent;
    }
    return ns;
}

// Whatever the machine, it loses hardly more than the better of always and never, and somewhere much less than both.
void judged_is_best() {
    double best_share = 1;
    for (double miss : { 30e3, 300e3, 3e6 }) {
        for (double late : { 0.0, 0.5, 1.0 }) {
            for (double look : { 5e3, 60e3 }) {
                for (double in_the_way : { 0.0, 0.3, 1.0 }) {
                    for (double best : { 0.9, 0.5 }) {
                        const Machine machine = { miss, late * miss, look, in_the_way, best, 0.6 };
                        const double  never = lost(machine, Guess::Never), always = lost(machine, Guess::Always);
                        const double  judged = lost(machine, Guess::Judged), share = judged / std::min(never, always);
                        best_share = std::min(best_share, share);
                        char text[200];
                        std::snprintf(text, sizeof(text), "miss %.0f late %.0f look %.0f in the way %.1f best %.1f: %.2f of the better", miss,
                                      machine.late, look, in_the_way, best, share);
                        expect(share < 1.06, text);
                    }
                }
            }
        }
    }
    std::printf("at best %.2f of the better of always and never\n", best_share);
    expect(best_share < 0.95, "choosing by rank brings nothing anywhere");
}

} // namespace

int main() {
    const std::pair<const char *, void (*)()> cases[] = {
        { "begins with likely ones", begins_with_likely_ones },
        { "gains are what was measured", gains_are_what_was_measured },
        { "ranks differ", ranks_differ },
        { "not worth it", not_worth_it },
        { "looks only where it pays", looks_only_where_it_pays },
        { "judged is best", judged_is_best },
    };
    for (const auto & [name, check] : cases) {
        const int before = n_wrong;
        check();
        std::printf("%s: %s\n", name, n_wrong == before ? "right" : "wrong");
    }
    return n_wrong == 0 ? 0 : 1;
}
