#include "s2-store-impl.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <stdexcept>

namespace s2 {
namespace {

constexpr int64_t PAGE        = Read::PAGE;
constexpr int32_t MIN_SLOTS   = 2;  // of a size class: one is multiplied, one is read
constexpr int32_t MAX_STAGING = 4;
constexpr int32_t NARROW      = 32; // rows of a pass that are told apart
constexpr float   SURE        = 0.6f;   // guesses that come true less often cost the disk more than they bring
constexpr float   MEMORY      = 0.98f;  // of how often they did, per guess
constexpr int32_t WARMING     = 4;  // experts in flight that nobody asked for

int64_t pages(int64_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace

std::atomic<int32_t> any_fault{ 0 };

// --- layout

Store::Store(const s2_store_config & config) : sync(config.sync) {
    for (int32_t i = 0; i < config.n_tensors; ++i) {
        add_tensor(config.tensors[i], config.n_files);
    }
    if (layers.empty()) {
        throw std::runtime_error("the model has no experts");
    }
    make_classes();
    policy = std::make_unique<Policy>(default_policy(), n_layers(), largest_layer);
    set_limits(config.bytes);

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
    reader = Reader::open(std::move(params), [this](uint64_t tag, const std::string & error) { came(tag, error); });
}

Store::~Store() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        to_warm.clear(); // what is in flight still comes, and may not ask for more
    }
    reader.reset();
    any_fault -= faulty;
}

void Store::add_tensor(const s2_store_tensor & tensor, int32_t n_files) {
    if (tensor.expert_bytes <= 0 || tensor.n_expert <= 0 || tensor.stride < tensor.expert_bytes || tensor.offset < 0) {
        throw std::runtime_error(std::string(tensor.name) + ": impossible size");
    }
    if (tensor.file < 0 || tensor.file >= n_files) {
        throw std::runtime_error(std::string(tensor.name) + ": in no file");
    }
    if (layers.empty() || layers.back().number != tensor.layer) {
        layers.push_back({ tensor.layer, tensor.n_expert, 0, 0, {} });
        entries.push_back(std::make_unique<Entry[]>(tensor.n_expert));
        largest_layer = std::max(largest_layer, tensor.n_expert);
        n_experts += tensor.n_expert;
    }
    Layer & layer = layers.back();
    if (layer.n_expert != tensor.n_expert || layer.tensors.size() == 4) {
        throw std::runtime_error(std::string(tensor.name) + ": does not fit its layer");
    }
    const bool    aligned = tensor.offset % PAGE == 0 && tensor.stride % PAGE == 0;
    const int32_t part    = (int32_t) layer.tensors.size();
    layer.tensors.push_back((int32_t) tensors.size());
    tensors.push_back({ tensor.name, n_layers() - 1, part, tensor.file, tensor.offset, tensor.stride, tensor.expert_bytes, layer.slot_bytes });
    layer.slot_bytes += pages(tensor.expert_bytes) + (aligned ? 0 : PAGE);
}

// Layers whose experts are of one size share slots.
void Store::make_classes() {
    std::vector<int64_t> sizes;
    std::vector<int32_t> counts;
    for (Layer & layer : layers) {
        const auto at = std::find(sizes.begin(), sizes.end(), layer.slot_bytes);
        layer.size_class = (int32_t) (at - sizes.begin());
        if (at == sizes.end()) {
            sizes.push_back(layer.slot_bytes);
            counts.push_back(0);
        }
        counts[layer.size_class] += layer.n_expert;
        class_of.push_back(layer.size_class);
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
        classes.push_back(std::make_unique<Slots>(sizes[i], counts[i]));
    }
}

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
    for (size_t c = 0; c < classes.size(); ++c) {
        Slots &       slots = *classes[c];
        const int32_t few   = std::min(MIN_SLOTS, slots.total());
        slots.set_limit(few + (int32_t) (share * (slots.total() - few) + 1e-9));
        const int32_t n_layers_of = (int32_t) std::count(class_of.begin(), class_of.end(), (int32_t) c);
        for (int32_t l = 0; l < n_layers(); ++l) {
            if (class_of[l] == (int32_t) c) {
                policy->set_fair_share(l, (float) slots.limit() / (float) n_layers_of);
            }
        }
    }
}

int32_t Store::find(const char * name) const {
    for (size_t i = 0; i < tensors.size(); ++i) {
        if (tensors[i].name == name) {
            return (int32_t) i;
        }
    }
    return -1;
}

// --- a pass

void Store::begin(int32_t tensor, Wanted * wanted, int32_t n, int32_t n_tokens) {
    const Tensor & t     = tensors[tensor];
    const bool     fresh = come_to(t);
    if (whole) { // after `current` is set: who shrinks clears `whole` first and then looks at `current`
        lost = false;
        if (fresh) {
            whole_asked += n;
            if (entered >= 0) {
                std::lock_guard<std::mutex> lock(mutex);
                leave();
            }
        }
        return;
    }
    std::unique_lock<std::mutex> lock(mutex);
    lost = faulty.load();
    if (lost) {
        return; // and the pass ends at the next node
    }
    if (fresh || entered != t.layer) {
        leave();
        shrink();
        enter(t.layer, wanted, n, n_tokens, fresh, lock);
    }
    stream_tensor = tensor;
    stream_at     = 0;
    stream_next();
    if (sync) {
        const int64_t start = now_ns();
        changed.wait(lock, [&] {
            return faulty || std::all_of(held.begin(), held.end(), [&](Expert x) { return entry(x).reading == 0; });
        });
        stall_ns += now_ns() - start;
    }
    put_in_order(t.layer, t.part, wanted, n);
}

// Whether the pass comes to the layer now, and does not go on in it.
bool Store::come_to(const Tensor & t) {
    const uint32_t bit   = 1u << t.part;
    const bool     fresh = t.layer != current || (begun & bit);
    if (fresh && (current < 0 || t.layer <= current)) {
        ++n_passes;
        used.clear();
    }
    begun   = fresh ? bit : begun | bit;
    current = t.layer;
    return fresh;
}

const char * Store::wait(int32_t tensor, int32_t expert, int32_t n_threads) {
    if (lost.load(std::memory_order_relaxed)) {
        return nullptr;
    }
    const Tensor & t   = tensors[tensor];
    Entry &        e   = entries[t.layer][expert];
    const uint32_t bit = 1u << t.part;
    if (!(e.ready.load(std::memory_order_acquire) & bit)) {
        const int64_t start = now_ns();
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return faulty || (e.ready.load(std::memory_order_relaxed) & bit); });
        stall_ns += (now_ns() - start) / n_threads;
        if (!(e.ready.load(std::memory_order_relaxed) & bit)) {
            return nullptr;
        }
    }
    const int64_t offset = t.offset + expert * t.stride;
    return classes[layers[t.layer].size_class]->at(e.slot.load(std::memory_order_relaxed)) + t.at + offset % PAGE;
}

void Store::done(int32_t tensor, int32_t expert) {
    Entry & e = entries[tensors[tensor].layer][expert];
    if (!e.streamed.load(std::memory_order_relaxed)) {
        return;
    }
    std::lock_guard<std::mutex> lock(mutex);
    if (!e.streamed) {
        return; // it came just now, after it had been abandoned
    }
    if (e.reading != 0) {
        e.abandoned = true; // another read failed, and nobody waited for this one
        return;
    }
    staging.push_back(e.slot);
    e.slot     = -1;
    e.ready    = 0;
    e.streamed = false;
    e.failed   = false;
    stream_next();
}

void Store::end_pass() {
    std::lock_guard<std::mutex> lock(mutex);
    leave();
    current = -1;
    shrink();
}

void Store::enter(int32_t layer, const Wanted * wanted, int32_t n, int32_t n_tokens, bool fresh, std::unique_lock<std::mutex> & lock) {
    // Left over from a pass that was lost: what is on its way to a slot that nobody wants must have come first.
    changed.wait(lock, [&] {
        return std::none_of(wanted, wanted + n, [&](const Wanted & w) { return entry({ layer, w.expert }).abandoned; });
    });
    evict_random();
    if (fresh) { // else it was counted while nothing could miss
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
    judge_guesses(layer, wanted, n);
    end_guesses(layer);

    // A wide pass touches most of a layer's experts once: it may not empty the other layers for them.
    const Slots & slots = *classes[class_of[layer]];
    const auto    peers = std::count(class_of.begin(), class_of.end(), class_of[layer]);
    const size_t  room  = n_tokens > NARROW ? std::max<size_t>(1, slots.limit() / peers) : SIZE_MAX;
    std::vector<Expert> given;
    for (Expert x : missing) {
        const int32_t slot = held.size() < room ? slot_for(x) : -1;
        if (slot >= 0) {
            entry(x).slot = slot;
            hold(x);
            given.push_back(x);
        } else {
            pass_through(x);
        }
    }
    if (!stream.empty()) {
        find_staging(given, lock);
    }
    std::vector<Read> reads;
    for (Expert x : given) {
        ask(x, true, reads);
    }
    submit(reads);
}

// While it is in `stream`, nobody else may read it into a slot of its own.
void Store::pass_through(Expert x) {
    entry(x).passing = true;
    stream.push_back(x);
}

// Which experts the pass used, for the figures and for the credit that acceptance brings.
void Store::note(int32_t layer, const Wanted * wanted, int32_t n, int32_t n_tokens) {
    for (int32_t i = 0; i < n; ++i) {
        count(entry({ layer, wanted[i].expert }));
        used.push_back({ { layer, wanted[i].expert }, wanted[i].rows, (float) wanted[i].n_rows / (float) n_tokens });
    }
}

void Store::count(const Entry & e) {
    ++stats.asked;
    stats.hits += e.resident;
    stats.late += e.slot >= 0 && !e.resident;
    stats.prefetch_used += e.ahead;
}

void Store::hold(Expert x) {
    Entry & e = entry(x);
    e.held = true;
    held.push_back(x);
    policy->set_pinned(x, true);
    for (int32_t part = 0; e.reading != 0 && part < (int32_t) layers[x.layer].tensors.size(); ++part) {
        if (e.reading & (1u << part)) {
            reader->promote(tag_of(x, part));
        }
    }
}

// How often the likeliest expert was asked for, the second likeliest, and so on, if it was not in memory: what is in
// memory is often asked for and easily guessed.
void Store::judge_guesses(int32_t layer, const Wanted * wanted, int32_t n) {
    if (predicted_layer != layer) {
        return;
    }
    came_true.resize(std::max(came_true.size(), predicted.size()), 1.0f);
    for (size_t rank = 0; rank < predicted.size(); ++rank) {
        const Guess guess = predicted[rank];
        if (guess.there) {
            continue;
        }
        const bool right = std::any_of(wanted, wanted + n, [&](const Wanted & w) { return w.expert == guess.expert; });
        came_true[rank] = MEMORY * came_true[rank] + (1.0f - MEMORY) * (right ? 1.0f : 0.0f);
    }
    predicted_layer = -1;
}

// Guesses about this layer are settled now, right or wrong. Wrong ones whose reads have not begun are called off.
void Store::end_guesses(int32_t layer) {
    std::vector<Expert> settled;
    guesses.erase(std::remove_if(guesses.begin(), guesses.end(), [&](Expert x) {
        if (x.layer == layer) {
            settled.push_back(x);
        }
        return x.layer == layer;
    }), guesses.end());
    for (Expert x : settled) {
        entry(x).ahead = false;
        if (!entry(x).held && entry(x).reading != 0) {
            call_off(x);
        }
    }
}

// Takes back reads that have not begun; what is left of the expert goes when those that have are through.
void Store::call_off(Expert x) {
    Entry & e    = entry(x);
    bool    some = false;
    for (int32_t i : layers[x.layer].tensors) {
        const Tensor & t = tensors[i];
        if ((e.reading & (1u << t.part)) && reader->withdraw(tag_of(x, t.part))) {
            e.reading &= ~(1u << t.part);
            stats.bytes_read -= t.bytes;
            stats.bytes_prefetched -= t.bytes;
            some = true;
        }
    }
    e.abandoned |= some; // it may have been before, when a part of it could not be read
    if (some && e.reading == 0) {
        drop(x);
    }
}

// Slots through which the tensors of `stream` pass, taken from `given` or from experts that are there if need be.
void Store::find_staging(std::vector<Expert> & given, std::unique_lock<std::mutex> & lock) {
    while (staging.size() < std::min<size_t>(MAX_STAGING, stream.size())) {
        const int32_t slot = slot_for(stream.front());
        if (slot >= 0) {
            staging.push_back(slot);
        } else if (given.size() > staging.size()) {
            const Expert x = given.back();
            given.pop_back();
            staging.push_back(entry(x).slot);
            entry(x).slot = -1;
            entry(x).held = false;
            policy->set_pinned(x, false);
            held.erase(std::find_if(held.begin(), held.end(), [&](Expert y) { return y.index == x.index; }));
            pass_through(x);
        } else if (!staging.empty()) {
            return;
        } else {
            const auto there = std::find_if(held.begin(), held.end(), [&](Expert x) { return entry(x).resident; });
            if (there == held.end()) {
                changed.wait(lock); // all is in flight, left over from a pass that was stopped
                continue;
            }
            const Expert x = *there;
            held.erase(there);
            policy->set_pinned(x, false);
            drop(x);
            pass_through(x);
        }
    }
}

// Those in memory first, then those in flight, then those that pass through, in the order in which they will come.
void Store::put_in_order(int32_t layer, int32_t part, Wanted * wanted, int32_t n) {
    std::vector<int32_t> place(layers[layer].n_expert);
    for (int32_t i = 0; i < n; ++i) {
        const bool ready = entries[layer][wanted[i].expert].ready & (1u << part);
        place[wanted[i].expert] = ready ? 0 : 1;
    }
    for (size_t i = 0; i < stream.size(); ++i) {
        place[stream[i].index] = 2 + (int32_t) i;
    }
    std::stable_sort(wanted, wanted + n, [&](const Wanted & a, const Wanted & b) { return place[a.expert] < place[b.expert]; });
}

void Store::stream_next() {
    std::vector<Read> reads;
    while (!faulty && stream_at < stream.size() && !staging.empty()) {
        const Expert x = stream[stream_at++];
        Entry &      e = entry(x);
        e.slot     = staging.back();
        e.streamed = true;
        staging.pop_back();
        ++stats.reads;
        reads.push_back(read_of(x, tensors[stream_tensor].part, true));
    }
    submit(reads);
}

void Store::leave() {
    for (Expert x : held) {
        Entry & e = entry(x);
        e.held = false;
        policy->set_pinned(x, false);
        if (e.failed) {
            e.abandoned = true;
            if (e.reading == 0) {
                drop(x);
            }
        }
    }
    held.clear();
    for (Expert x : expected) { // the next layer holds them now, or the pass is over
        policy->set_pinned(x, false);
    }
    expected.clear();
    for (Expert x : stream) {
        Entry & e = entry(x);
        e.passing = false;
        if (e.streamed) { // only of a pass that was lost
            e.abandoned = true;
            if (e.reading == 0) {
                drop(x);
            }
        }
    }
    stream.clear();
    for (int32_t slot : staging) {
        classes[class_of[entered]]->release(slot);
    }
    staging.clear();
    entered = -1;
}

// --- slots

int32_t Store::slot_for(Expert wanted) {
    Slots & slots = *classes[class_of[wanted.layer]];
    int32_t slot  = slots.take();
    Expert  victim;
    while (slot < 0 && policy->victim(wanted, class_of, victim)) {
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
        guesses.erase(std::remove_if(guesses.begin(), guesses.end(), [&](Expert y) { return y.layer == x.layer && y.index == x.index; }), guesses.end());
    }
    classes[class_of[x.layer]]->release(e.slot);
    e.slot     = -1;
    e.ready    = 0;
    e.streamed = false;
    e.held = e.ahead = e.abandoned = e.failed = e.resident = false;
}

void Store::shrink() {
    for (size_t c = 0; c < classes.size(); ++c) {
        Expert victim;
        while (classes[c]->over() && policy->surplus((int32_t) c, class_of, victim)) {
            drop(victim);
        }
    }
}

int64_t Store::resize(int64_t bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    whole = false;
    set_limits(bytes);
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

void Store::judge_whole() {
    whole = n_resident == n_experts && torment_evict == 0 &&
            std::all_of(classes.begin(), classes.end(), [](const auto & slots) { return slots->limit() == slots->total(); });
}

void Store::evict_random() {
    for (int32_t i = 0; i < torment_evict; ++i) {
        const int32_t l = (int32_t) (random() % layers.size());
        const Expert  x = { l, (int32_t) (random() % layers[l].n_expert) };
        if (entry(x).resident && !entry(x).held) {
            drop(x);
        }
    }
}

// --- reads

uint64_t Store::tag_of(Expert x, int32_t part) const { return ((uint64_t) x.layer * largest_layer + x.index) * 4 + part; }

Read Store::read_of(Expert x, int32_t part, bool demand) {
    const Layer &  layer = layers[x.layer];
    const Tensor & t     = tensors[layer.tensors[part]];
    Entry &        e     = entry(x);
    e.reading |= 1u << part;
    stats.bytes_read += t.bytes;
    stats.bytes_prefetched += demand ? 0 : t.bytes;
    return { t.file, t.offset + x.index * t.stride, t.bytes, classes[layer.size_class]->at(e.slot) + t.at, tag_of(x, part), demand };
}

void Store::ask(Expert x, bool demand, std::vector<Read> & reads) {
    ++stats.reads;
    for (int32_t part = 0; part < (int32_t) layers[x.layer].tensors.size(); ++part) {
        reads.push_back(read_of(x, part, demand));
    }
}

// In the order in which the kernels consume: every expert's first tensor, then every expert's second.
void Store::submit(std::vector<Read> & reads) {
    std::stable_sort(reads.begin(), reads.end(), [](const Read & a, const Read & b) { return a.tag % 4 < b.tag % 4; });
    if (!reads.empty()) {
        reader->submit(reads.data(), reads.size());
    }
}

// From a thread of the reader.
void Store::came(uint64_t tag, const std::string & error) {
    std::lock_guard<std::mutex> lock(mutex);
    const Expert   x   = { (int32_t) (tag / 4 / largest_layer), (int32_t) (tag / 4 % largest_layer) };
    const uint32_t bit = 1u << (tag % 4);
    Entry &        e   = entry(x);
    e.reading &= ~bit;
    if (error.empty()) {
        e.ready.fetch_or(bit, std::memory_order_release);
    } else {
        e.failed = true;
        if (!e.held && !e.streamed) {
            e.abandoned = true; // nobody has asked for it; who does has it read again
        } else if (!e.abandoned && !faulty) {
            fault  = error;
            faulty = true;
            ++any_fault;
        }
    }
    if (e.reading == 0) {
        if (e.warming) {
            e.warming = false;
            --warming;
        }
        if (e.abandoned) {
            drop(x);
        } else if (!e.streamed && e.ready == layers[x.layer].all()) {
            e.resident = true;
            ++n_resident;
            policy->set_resident(x, true);
            policy->set_pinned(x, e.held);
            judge_whole();
        }
        if (current < 0) {
            shrink(); // it could not go while it was in flight
        }
        warm_next();
    }
    changed.notify_all();
}

void Store::look_ahead(int32_t layer, const int32_t * experts, int32_t n) {
    std::lock_guard<std::mutex> lock(mutex);
    const size_t      most = std::min<size_t>(n, classes[class_of[layer]]->limit() / 4);
    std::vector<Read> reads;
    predicted.clear();
    predicted_layer = layer;
    for (int32_t i = 0; i < n; ++i) { // what is likely needed may not go for something else that is
        const Expert x = { layer, experts[i] };
        predicted.push_back({ x.index, entry(x).slot >= 0 });
        if (entry(x).resident && !entry(x).held) {
            policy->set_pinned(x, true);
            expected.push_back(x);
        }
    }
    for (int32_t i = 0; i < n && !faulty && guesses.size() < most; ++i) {
        const Expert x = { layer, experts[i] };
        const bool   sure = i >= (int32_t) came_true.size() || came_true[i] >= SURE;
        if (entry(x).slot >= 0 || entry(x).passing || !sure) {
            continue;
        }
        const int32_t slot = slot_for(x);
        if (slot < 0) {
            break;
        }
        entry(x).slot  = slot;
        entry(x).ahead = true;
        guesses.push_back(x);
        ++stats.prefetched;
        ask(x, false, reads);
    }
    submit(reads);
}

void Store::warm() {
    std::lock_guard<std::mutex> lock(mutex);
    to_warm.clear();
    for (int32_t l = 0; l < n_layers(); ++l) {
        for (int32_t i = 0; i < layers[l].n_expert; ++i) {
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
        const int32_t slot = classes[class_of[x.layer]]->take();
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

// --- what the policy learns, and figures

void Store::credit(int32_t n_rows) {
    if (whole || n_rows <= 0) {
        return;
    }
    std::lock_guard<std::mutex> lock(mutex);
    policy->age((float) n_rows);
    const uint32_t accepted = n_rows >= NARROW ? UINT32_MAX : (1u << n_rows) - 1;
    for (const Used & u : used) {
        const bool  wide   = n_rows > NARROW;
        const float weight = wide ? u.share * NARROW : (float) __builtin_popcount(u.rows & accepted);
        if (weight > 0.0f) {
            policy->credit(u.expert, weight);
        }
    }
    used.clear();
}

void Store::get_heat(float * heat) {
    std::lock_guard<std::mutex> lock(mutex);
    policy->get_heat(heat);
}

void Store::set_heat(const float * heat) {
    std::lock_guard<std::mutex> lock(mutex);
    policy->set_heat(heat);
}

void Store::get_stats(s2_store_stats & out) {
    std::lock_guard<std::mutex> lock(mutex);
    out = stats;
    for (const auto & slots : classes) {
        out.bytes += std::max(slots->limit(), slots->in_use()) * slots->slot_bytes();
        out.n_slots += slots->limit();
    }
    out.n_resident = n_resident;
    out.n_experts  = n_experts;
    out.passes = n_passes;
    out.asked += whole_asked;
    out.hits += whole_asked;
    out.stall_ns = stall_ns;
}

bool Store::take_fault(std::string & text) {
    std::lock_guard<std::mutex> lock(mutex);
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
    std::lock_guard<std::mutex> lock(mutex);
    random.seed(seed);
    torment_n     = seed << 20;
    torment_us    = max_us;
    torment_fail  = fail_each;
    torment_evict = evictions;
    judge_whole();
}

} // namespace s2
