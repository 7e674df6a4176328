#include "s2-store-impl.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

namespace s2 {
namespace {

constexpr int32_t MIN_SLOTS = 2; // of a size class: one is multiplied, one is read

} // namespace

std::atomic<int32_t> any_fault{ 0 };

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Store::Store(const s2_store_config & config) : sync(config.sync), layout(config) {
    for (const Layout::SizeClass & size_class : layout.size_classes()) {
        classes.push_back(std::make_unique<Slots>(size_class.slot_bytes, size_class.n_experts));
    }
    for (int32_t l = 0; l < n_layers(); ++l) {
        entries.push_back(std::make_unique<Entry[]>(layout.layer(l).n_expert));
    }
    policy = std::make_unique<Policy>(default_policy(), n_layers(), n_expert());
    set_limits(config.bytes);
    reader = Reader::open(reader_params(config), [this](uint64_t tag, const std::string & error) { came(tag, error); });
}

Store::~Store() {
    {
        const Lock lock(mutex);
        to_warm.clear(); // what is in flight still comes, and may not ask for more
    }
    reader.reset();
    any_fault -= faulty;
}

ReaderParams Store::reader_params(const s2_store_config & config) {
    ReaderParams params;
    params.files.assign(config.files, config.files + config.n_files);
    params.method = (Method) config.method;
    if (config.depth > 0) {
        params.depth = config.depth;
    }
    params.fault = [this](int32_t, int64_t, int64_t) -> int64_t {
        const int32_t each = torment_fail, us = torment_us;
        if (each == 0 && us == 0) {
            return 0;
        }
        const uint64_t n = ++torment_n;
        if (each != 0 && n % each == 0) {
            return -EIO;
        }
        return us == 0 ? 0 : (int64_t) ((n * 0x9e3779b97f4a7c15ull >> 33) % us);
    };
    return params;
}

// --- the budget

int64_t Store::bytes_min() const {
    int64_t bytes = 0;
    for (const auto & slots : classes) {
        bytes += std::min(MIN_SLOTS, slots->total()) * slots->slot_bytes();
    }
    return bytes;
}

int64_t Store::bytes_all() const {
    int64_t bytes = 0;
    for (const auto & slots : classes) {
        bytes += slots->total() * slots->slot_bytes();
    }
    return bytes;
}

// Each size class gets the least that works, and of what is left the same share of what its other experts would take.
void Store::set_limits(int64_t bytes) {
    const int64_t least = bytes_min(), most = bytes_all();
    const double  share = bytes >= most ? 1.0 : std::max(0.0, (double) (bytes - least) / (double) (most - least));
    for (const auto & slots : classes) {
        const int32_t few = std::min(MIN_SLOTS, slots->total());
        slots->set_limit(few + (int32_t) (share * (slots->total() - few) + 1e-9));
    }
    for (int32_t l = 0; l < n_layers(); ++l) {
        const auto & size_class = layout.size_classes()[layout.class_of()[l]];
        policy->set_fair_share(l, (float) slots_of(l).limit() / (float) size_class.n_layers);
    }
}

int64_t Store::resize(int64_t bytes) {
    const Lock lock(mutex);
    whole = false;
    set_limits(bytes);
    forget_awaited(); // or what is kept for a verify pass might be more than fits now
    if (current < 0) {
        shrink(); // else the pass does, when it enters its next layer
    }
    judge_whole();
    int64_t now = 0;
    for (const auto & slots : classes) {
        now += std::max(slots->limit(), slots->in_use()) * slots->slot_bytes();
    }
    return now;
}

int32_t Store::slot_for(Expert wanted) {
    Slots & slots = slots_of(wanted.layer);
    int32_t slot  = slots.take();
    Expert  victim;
    while (slot < 0 && policy->victim(wanted, layout.class_of(), victim)) {
        drop(victim);
        slot = slots.take();
    }
    return slot;
}

void Store::drop(Expert x) {
    Entry & e = entry(x);
    whole = false;
    if (e.resident) {
        policy->set_resident(x, false);
        --n_resident;
        ++stats.evicted;
    }
    if (e.ahead) {
        forget_guess(x);
    }
    slots_of(x.layer).release(e.slot);
    e.slot     = -1;
    e.ready    = 0;
    e.streamed = false;
    e.held = e.ahead = e.abandoned = e.failed = e.resident = false;
}

void Store::shrink() {
    for (size_t c = 0; c < classes.size(); ++c) {
        Expert victim;
        while (classes[c]->over() && policy->surplus((int32_t) c, layout.class_of(), victim)) {
            drop(victim);
        }
    }
}

void Store::judge_whole() {
    whole = n_resident == layout.n_experts() && torment_evict == 0 &&
            std::all_of(classes.begin(), classes.end(), [](const auto & slots) { return slots->limit() == slots->total(); });
}

// --- figures and faults

void Store::get_heat(float * heat) {
    const Lock lock(mutex);
    policy->get_heat(heat);
}

void Store::set_heat(const float * heat) {
    const Lock lock(mutex);
    policy->set_heat(heat);
}

void Store::get_stats(s2_store_stats & out) {
    const Lock lock(mutex);
    out = stats;
    for (const auto & slots : classes) {
        out.bytes += std::max(slots->limit(), slots->in_use()) * slots->slot_bytes();
        out.n_slots += slots->limit();
    }
    out.n_resident = n_resident;
    out.n_experts  = layout.n_experts();
    out.passes = n_passes;
    out.asked += whole_asked;
    out.hits += whole_asked;
    out.stall_ns = stall_ns;
}

bool Store::take_fault(std::string & text) {
    const Lock lock(mutex);
    if (!faulty || current >= 0) {
        return false; // a pass that is lost stays so to its end
    }
    text.swap(fault);
    fault.clear();
    faulty = false;
    --any_fault;
    return true;
}

void Store::torment(uint64_t seed, int32_t max_us, int32_t fail_each, int32_t evictions) {
    const Lock lock(mutex);
    random.seed(seed);
    torment_n     = seed << 20;
    torment_us    = max_us;
    torment_fail  = fail_each;
    torment_evict = evictions;
    judge_whole();
}

void Store::evict_random() {
    for (int32_t i = 0; i < torment_evict; ++i) {
        const int32_t l = (int32_t) (random() % n_layers());
        const Expert  x = { l, (int32_t) (random() % layout.layer(l).n_expert) };
        if (entry(x).resident && !entry(x).held) {
            drop(x);
        }
    }
}

} // namespace s2
