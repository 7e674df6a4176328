// A pass asks for one layer after the other: those of its experts that are missing get slots and are read, and all are held
// until it is through with the layer.

#include "s2-store-impl.h"

#include <algorithm>

namespace s2 {
namespace {

constexpr int32_t SAMPLED_EACH = 16; // credited passes, of which one is noted while nothing can be missing

} // namespace

void Store::begin(int32_t tensor, Wanted * wanted, int32_t n, int32_t n_tokens) {
    const Layout::Tensor & t     = layout.tensor(tensor);
    const bool             fresh = come_to(t);
    if (whole) { // after `current` is set: who shrinks clears `whole` first and then looks at `current`
        begin_whole(t.layer, wanted, n, n_tokens, fresh);
        return;
    }
    reader->look(); // what came while this thread multiplied
    Lock lock(mutex);
    lost = faulty.load();
    if (lost) {
        return; // and the pass ends at the next node
    }
    if (fresh || entered != t.layer) {
        leave();
        shrink();
        enter(t.layer, wanted, n, n_tokens, fresh, lock);
    }
    stream.tensor = tensor;
    stream.next   = 0;
    stream_next();
    if (sync) {
        wait_until(lock, [&] {
            return faulty || std::all_of(held.begin(), held.end(), [&](Expert x) { return entry(x).reading == 0; });
        });
    }
    put_in_order(t.layer, t.part, wanted, n);
}

// Whether the pass comes to the layer now, and does not go on in it.
bool Store::come_to(const Layout::Tensor & t) {
    const uint32_t bit   = 1u << t.part;
    const bool     fresh = t.layer != current || (begun & bit);
    if (fresh && (current < 0 || t.layer <= current)) {
        n_passes += drafting ? 0 : 1;
        used.clear();
    }
    begun   = fresh ? bit : begun | bit;
    current = t.layer;
    return fresh;
}

void Store::begin_whole(int32_t layer, const Wanted * wanted, int32_t n, int32_t n_tokens, bool fresh) {
    const bool noted = sampling && !drafting;
    lost = false;
    if (!fresh) {
        return;
    }
    whole_asked += drafting ? 0 : n;
    if (entered < 0 && !noted) {
        return;
    }
    const Lock lock(mutex);
    if (entered >= 0) {
        leave();
    }
    if (noted) {
        note(layer, wanted, n, n_tokens);
    }
}

const char * Store::wait(int32_t tensor, int32_t expert, int32_t n_threads) {
    if (lost.load(std::memory_order_relaxed)) {
        return nullptr;
    }
    const Layout::Tensor & t   = layout.tensor(tensor);
    Entry &                e   = entries[t.layer][expert];
    const uint32_t         bit = 1u << t.part;
    const auto             is_ready = [&] { return (e.ready.load(std::memory_order_acquire) & bit) != 0; };
    if (!is_ready()) {
        const int64_t start = now_ns();
        reader->wait_until([&] { return is_ready() || faulty; });
        const int64_t share = (now_ns() - start) / n_threads;
        stall_ns += share;
        (e.guessed ? waited.for_guessed : waited.for_missed) += share;
        if (!is_ready()) {
            return nullptr;
        }
    }
    const int64_t offset = t.offset + expert * t.stride;
    return slots_of(t.layer).at(e.slot.load(std::memory_order_relaxed)) + t.at + offset % Read::PAGE;
}

void Store::end_pass() {
    {
        const Lock lock(mutex);
        leave();
        hopes.clear();
        if (!drafting) {
            forget_awaited();
        }
        current = -1;
        shrink();
    }
    reader->attend(false);
}

void Store::enter(int32_t layer, const Wanted * wanted, int32_t n, int32_t n_tokens, bool fresh, Lock & lock) {
    // Left over from a pass that was lost: what is on its way to a slot that nobody wants must have come first.
    wait_until(lock, [&] {
        return std::none_of(wanted, wanted + n, [&](const Wanted & w) { return entry({ layer, w.expert }).abandoned; });
    });
    reader->attend(to_warm.empty()); // nobody waits for what is read in the background
    evict_random();
    if (fresh && !drafting) { // else it was counted while nothing could miss
        count(layer, wanted, n);
        note(layer, wanted, n, n_tokens);
    }
    entered = layer;
    std::vector<Expert> missing;
    for (int32_t i = 0; i < n; ++i) {
        const Expert x = { layer, wanted[i].expert };
        if (entry(x).slot >= 0) {
            hold(x);
        } else {
            missing.push_back(x);
        }
    }
    waited.counts    = n_tokens == 1 && !drafting; // only such passes look ahead
    waited.n_missed  = (int32_t) missing.size();
    waited.n_guessed = (int32_t) std::count_if(held.begin(), held.end(), [&](Expert x) { return entry(x).guessed; });
    if (!drafting) { // or what it announced would be taken back
        judge_guesses(layer, wanted, n);
        end_guesses(layer);
    }

    // A wide pass touches most of a layer's experts once: it may not empty the other layers for them.
    const int32_t peers = layout.size_classes()[layout.class_of()[layer]].n_layers;
    const size_t  room  = n_tokens > NARROW_PASS ? std::max(1, slots_of(layer).limit() / peers) : SIZE_MAX;
    std::vector<Expert> given;
    for (Expert x : missing) {
        const int32_t slot = held.size() < room ? slot_on_demand(x) : -1;
        if (slot >= 0) {
            entry(x).slot = slot;
            hold(x);
            given.push_back(x);
        } else {
            pass_through(x);
        }
    }
    if (!stream.experts.empty()) {
        find_way(given, lock);
    }
    std::vector<Read> reads;
    for (Expert x : given) {
        ask(x, true, reads);
    }
    submit(reads);
}

void Store::leave() {
    judge_waits();
    for (Expert x : held) {
        Entry & e = entry(x);
        e.held = e.guessed = false;
        unpin(x);
        if (e.failed) {
            e.abandoned = true;
            if (e.reading == 0) {
                drop(x);
            }
        }
    }
    held.clear();
    for (Expert x : expected) { // the next layer holds them now, or the pass is over
        unpin(x);
    }
    expected.clear();
    end_stream();
    entered = -1;
}

void Store::hold(Expert x) {
    Entry & e = entry(x);
    e.held    = true;
    e.guessed = e.ahead;
    held.push_back(x);
    policy->set_pinned(x, true);
    for (int32_t part = 0; e.reading != 0 && part < (int32_t) layout.layer(x.layer).tensors.size(); ++part) {
        if (e.reading & (1u << part)) {
            reader->promote(layout.tag_of(x, part));
        }
    }
}

void Store::let_go(Expert x) {
    entry(x).held = entry(x).guessed = false;
    policy->set_pinned(x, false);
    held.erase(std::find_if(held.begin(), held.end(), [&](Expert y) { return y.index == x.index; }));
}

// Those in memory first, then those in flight, then those that pass through, in the order in which they will come.
void Store::put_in_order(int32_t layer, int32_t part, Wanted * wanted, int32_t n) {
    std::vector<int32_t> place(layout.layer(layer).n_expert);
    for (int32_t i = 0; i < n; ++i) {
        const bool ready = entries[layer][wanted[i].expert].ready & (1u << part);
        place[wanted[i].expert] = ready ? 0 : 1;
    }
    for (size_t i = 0; i < stream.experts.size(); ++i) {
        place[stream.experts[i].index] = 2 + (int32_t) i;
    }
    std::stable_sort(wanted, wanted + n, [&](const Wanted & a, const Wanted & b) { return place[a.expert] < place[b.expert]; });
}

// --- which experts the pass used

void Store::count(int32_t layer, const Wanted * wanted, int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
        const Entry & e = entry({ layer, wanted[i].expert });
        ++stats.asked;
        stats.hits += e.resident;
        stats.late += e.slot >= 0 && !e.resident;
        stats.prefetch_used += e.ahead;
    }
}

// For the credit that acceptance brings.
void Store::note(int32_t layer, const Wanted * wanted, int32_t n, int32_t n_tokens) {
    used_wide = n_tokens > NARROW_PASS;
    for (int32_t i = 0; i < n; ++i) {
        used.push_back({ { layer, wanted[i].expert }, wanted[i].rows, (float) wanted[i].n_rows / (float) n_tokens });
    }
}

// While every expert is in memory heat decides nothing, and gathering it would cost each token something. Now and then a pass
// is noted all the same: heat says who goes first when the budget falls, and what the next start reads first.
void Store::credit(int32_t n_rows) {
    if (n_rows <= 0) {
        return;
    }
    if (whole && !sampling) {
        sampling = ++unheard >= SAMPLED_EACH;
        return;
    }
    const Lock lock(mutex);
    policy->age((float) n_rows);
    const uint32_t accepted = n_rows >= NARROW_PASS ? UINT32_MAX : (1u << n_rows) - 1;
    for (const Used & u : used) {
        // Of a wide pass it is not known which rows used the expert, only how many.
        const float weight = used_wide ? u.share * (float) std::min(n_rows, NARROW_PASS) : (float) __builtin_popcount(u.rows & accepted);
        if (weight > 0.0f) {
            policy->credit(u.expert, weight);
        }
    }
    used.clear();
    sampling = false;
    unheard  = 0;
}

} // namespace s2
