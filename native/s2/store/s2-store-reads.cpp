// What the store has read, and what becomes of it.

#include "s2-store-impl.h"

#include <algorithm>

namespace s2 {
namespace {

constexpr int32_t WARMING = 4; // experts in flight that nobody asked for

} // namespace

Read Store::read_of(Expert x, int32_t part, bool demand) {
    const Layout::Tensor & t = layout.tensor(x.layer, part);
    Entry &                e = entry(x);
    e.reading |= 1u << part;
    stats.bytes_read += t.bytes;
    stats.bytes_prefetched += demand ? 0 : t.bytes;
    return { t.file, t.offset + x.index * t.stride, t.bytes, slots_of(x.layer).at(e.slot) + t.at, layout.tag_of(x, part), demand };
}

void Store::ask(Expert x, bool demand, std::vector<Read> & reads) {
    ++stats.reads;
    for (int32_t part = 0; part < (int32_t) layout.layer(x.layer).tensors.size(); ++part) {
        reads.push_back(read_of(x, part, demand));
    }
}

// What the pass waits for, in the order in which the kernels consume: every expert's first tensor, then every expert's second.
// What is read ahead stays in its order, one expert after the other: the likeliest is there first, and whatever is called off
// later has not been begun.
void Store::submit(std::vector<Read> & reads) {
    const auto turn = [](const Read & read) { return read.demand ? Layout::part_of(read.tag) : 0; };
    std::stable_sort(reads.begin(), reads.end(), [&](const Read & a, const Read & b) { return turn(a) < turn(b); });
    if (!reads.empty()) {
        reader->submit(reads.data(), reads.size());
    }
}

// From whichever thread looks after the reads.
void Store::came(uint64_t tag, const std::string & error) {
    const Lock     lock(mutex);
    const Expert   x   = layout.expert_of(tag);
    const uint32_t bit = 1u << Layout::part_of(tag);
    Entry &        e   = entry(x);
    ++n_came;
    e.reading &= ~bit;
    if (error.empty()) {
        e.ready.fetch_or(bit, std::memory_order_release);
    } else {
        e.failed = true;
        if (!e.held && !e.streamed) {
            e.abandoned = true; // nobody has asked for it; who does has it read again
        } else if (!e.abandoned && !faulty) {
            fault = error;
            ++any_fault; // before who waits can see it
            faulty = true;
        }
    }
    if (e.reading != 0) {
        return;
    }
    if (e.warming) {
        e.warming = false;
        --warming;
    }
    if (e.abandoned) {
        drop(x);
    } else if (!e.streamed && e.ready == layout.layer(x.layer).all()) {
        e.resident = true;
        ++n_resident;
        policy->set_resident(x, true);
        policy->set_pinned(x, e.held || e.awaited);
        judge_whole();
    }
    if (current < 0) {
        shrink(); // it could not go while it was in flight
    }
    warm_next();
    guess_next();
}

// Takes back reads that have not begun; what is left of the expert goes when those that have are through.
void Store::call_off(Expert x) {
    Entry & e    = entry(x);
    bool    some = false;
    for (int32_t part = 0; part < (int32_t) layout.layer(x.layer).tensors.size(); ++part) {
        if ((e.reading & (1u << part)) && reader->withdraw(layout.tag_of(x, part))) {
            const int64_t bytes = layout.tensor(x.layer, part).bytes;
            e.reading &= ~(1u << part);
            stats.bytes_read -= bytes;
            stats.bytes_prefetched -= bytes;
            some = true;
        }
    }
    e.abandoned |= some; // it may have been before, when a part of it could not be read
    if (some && e.reading == 0) {
        drop(x);
    }
}

void Store::warm() {
    const Lock lock(mutex);
    to_warm.clear();
    for (int32_t l = 0; l < n_layers(); ++l) {
        for (int32_t i = 0; i < layout.layer(l).n_expert; ++i) {
            to_warm.push_back({ l, i });
        }
    }
    std::stable_sort(to_warm.begin(), to_warm.end(), [&](Expert a, Expert b) {
        const float x = policy->heat(a), y = policy->heat(b);
        return x != y ? x < y : a.layer > b.layer;
    });
    warm_next();
}

void Store::warm_next() {
    std::vector<Read> reads;
    while (!faulty && warming < WARMING && !to_warm.empty()) {
        const Expert x = to_warm.back();
        to_warm.pop_back();
        if (entry(x).slot >= 0 || entry(x).passing) {
            continue;
        }
        const int32_t slot = slots_of(x.layer).take();
        if (slot < 0) {
            continue; // full; another size may have room
        }
        entry(x).slot    = slot;
        entry(x).warming = true;
        ++warming;
        ask(x, false, reads);
    }
    submit(reads);
}

} // namespace s2
