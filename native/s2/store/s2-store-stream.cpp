// Experts of a layer that find no slot, because the pass touches more of them than it may keep: one tensor at a time, in the
// order in which they are multiplied, they pass through a few slots. Each is read once.

#include "s2-store-impl.h"

#include <algorithm>

namespace s2 {
namespace {

constexpr int32_t MAX_STAGING = 4; // slots that they pass through

} // namespace

// While it is in `stream`, nobody else may read it into a slot of its own.
void Store::pass_through(Expert x) {
    entry(x).passing = true;
    stream.experts.push_back(x);
}

// Slots to pass through, taken from `given`, which were to be read, or from experts that are there if need be.
void Store::find_way(std::vector<Expert> & given, Lock & lock) {
    while (stream.free.size() < std::min<size_t>(MAX_STAGING, stream.experts.size())) {
        const int32_t slot = slot_on_demand(stream.experts.front());
        if (slot >= 0) {
            stream.free.push_back(slot);
        } else if (given.size() > stream.free.size()) {
            const Expert x = given.back();
            given.pop_back();
            stream.free.push_back(entry(x).slot);
            let_go(x);
            entry(x).slot = -1;
            pass_through(x);
        } else if (!stream.free.empty()) {
            return;
        } else {
            const auto there = std::find_if(held.begin(), held.end(), [&](Expert x) { return entry(x).resident; });
            if (there == held.end()) { // all is in flight, left over from a pass that was stopped
                wait_until(lock, [this, before = n_came] { return n_came != before; });
                continue;
            }
            const Expert x = *there;
            let_go(x);
            drop(x);
            pass_through(x);
        }
    }
}

void Store::stream_next() {
    std::vector<Read> reads;
    while (!faulty && stream.next < stream.experts.size() && !stream.free.empty()) {
        const Expert x = stream.experts[stream.next++];
        Entry &      e = entry(x);
        e.slot     = stream.free.back();
        e.streamed = true;
        stream.free.pop_back();
        ++stats.reads;
        reads.push_back(read_of(x, layout.tensor(stream.tensor).part, true));
    }
    submit(reads);
}

void Store::done(int32_t tensor, int32_t expert) {
    Entry & e = entries[layer_of(tensor)][expert];
    if (!e.streamed.load(std::memory_order_relaxed)) {
        return;
    }
    const Lock lock(mutex);
    if (!e.streamed) {
        return; // it came just now, after it had been abandoned
    }
    if (e.reading != 0) {
        e.abandoned = true; // another read failed, and nobody waited for this one
        return;
    }
    stream.free.push_back(e.slot);
    e.slot     = -1;
    e.ready    = 0;
    e.streamed = false;
    e.failed   = false;
    stream_next();
}

void Store::end_stream() {
    for (Expert x : stream.experts) {
        Entry & e = entry(x);
        e.passing = false;
        if (e.streamed) { // only of a pass that was lost
            e.abandoned = true;
            if (e.reading == 0) {
                drop(x);
            }
        }
    }
    stream.experts.clear();
    for (int32_t slot : stream.free) {
        slots_of(entered).release(slot);
    }
    stream.free.clear();
}

} // namespace s2
