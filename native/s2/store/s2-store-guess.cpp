// What the next layer will likely ask for is read before it asks, where that is worth it.

#include "s2-store-impl.h"

#include <algorithm>

namespace s2 {
namespace {

constexpr int64_t AHEAD_BYTES = 4 << 20; // in flight on guesses: what a fast disk reads while nobody looks after the reads

} // namespace

bool Store::wants_guesses() {
    if (!may_miss() || drafting || !prefetch) {
        return false;
    }
    const Lock lock(mutex);
    return lookahead.begin_look();
}

void Store::look_ahead(int32_t layer, const int32_t * experts, int32_t n, int64_t since) {
    const Lock   lock(mutex);
    const size_t most = std::min<size_t>(n, slots_of(layer).limit() / 4);
    predicted.clear();
    hopes.clear();
    predicted_layer = layer;
    for (int32_t i = 0; i < n; ++i) {
        const Expert x = { layer, experts[i] };
        predicted.push_back({ x.index, entry(x).slot >= 0 });
        if (entry(x).resident && !entry(x).held) { // what is likely needed may not go for something else that is
            policy->set_pinned(x, true);
            expected.push_back(x);
        }
        if (entry(x).slot < 0 && hopes.size() < most && lookahead.worth(i)) {
            hopes.push_back(x);
        }
    }
    std::reverse(hopes.begin(), hopes.end());
    n_begun = 0;
    guess_next();
    look_took = now_ns() - since;
}

// A few at a time: a guess takes another expert's slot, for nothing if the layer comes before its read could begin.
void Store::guess_next() {
    std::vector<Read> reads;
    while (!faulty && !hopes.empty() && !enough_in_flight()) {
        const Expert x = hopes.back();
        hopes.pop_back();
        if (entry(x).slot >= 0 || entry(x).passing) {
            continue;
        }
        if (!read_ahead(x, reads)) {
            hopes.clear();
            break;
        }
        ++n_begun;
    }
    submit(reads);
}

bool Store::enough_in_flight() {
    int32_t n     = 0;
    int64_t bytes = 0;
    for (Expert x : guesses) {
        if (entry(x).reading != 0) {
            ++n;
            bytes += slots_of(x.layer).slot_bytes();
        }
    }
    return n >= 2 && bytes >= AHEAD_BYTES;
}

// For an expert that is neither in memory nor passing through. False where there is no slot to be had.
bool Store::read_ahead(Expert x, std::vector<Read> & reads) {
    const int32_t slot = slot_for(x);
    if (slot < 0) {
        return false;
    }
    entry(x).slot  = slot;
    entry(x).ahead = true;
    guesses.push_back(x);
    ++stats.prefetched;
    ask(x, false, reads);
    return true;
}

// How often the likeliest expert was asked for, the second likeliest, and so on, if it was not in memory: what is in
// memory is often asked for and easily guessed.
void Store::judge_guesses(int32_t layer, const Wanted * wanted, int32_t n) {
    hopes.clear();
    if (predicted_layer != layer) {
        return;
    }
    lookahead.looked(n_begun, look_took);
    for (size_t rank = 0; rank < predicted.size(); ++rank) {
        const Guess guess = predicted[rank];
        if (!guess.there) {
            lookahead.judged(rank, std::any_of(wanted, wanted + n, [&](const Wanted & w) { return w.expert == guess.expert; }));
        }
    }
    predicted_layer = -1;
}

// Guesses about this layer are settled now, right or wrong. Wrong ones whose reads have not begun are called off.
void Store::end_guesses(int32_t layer) {
    const auto settled = std::stable_partition(guesses.begin(), guesses.end(), [&](Expert x) { return x.layer != layer; });
    const std::vector<Expert> of_layer(settled, guesses.end());
    guesses.erase(settled, guesses.end());
    for (Expert x : of_layer) {
        Entry & e = entry(x);
        e.ahead = false;
        if (e.held) {
            continue;
        }
        if (e.reading != 0) {
            call_off(x);
        }
        lookahead.wrong(e.reading != 0);
    }
}

// The pass is through with a layer: what it waited for there.
void Store::judge_waits() {
    const int64_t for_missed = waited.for_missed.exchange(0), for_guessed = waited.for_guessed.exchange(0);
    if (waited.counts) {
        lookahead.waited(waited.n_missed, for_missed, waited.n_guessed, for_guessed);
    }
    waited.counts = false;
}

void Store::forget_guess(Expert x) {
    guesses.erase(std::remove_if(guesses.begin(), guesses.end(), [&](Expert y) { return y.layer == x.layer && y.index == x.index; }),
                  guesses.end());
}

} // namespace s2
