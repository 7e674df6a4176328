// The C interface of the store.

#include "s2-store-impl.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <vector>

struct s2_store {
    s2::Store   store;
    std::string reason;

    struct Layer {
        s2::Store * store;
        int32_t     index;
    };
    std::vector<Layer> layers;

    explicit s2_store(const s2_store_config & config) : store(config), reason(store.reason()) {
        for (int32_t i = 0; i < store.n_layers(); ++i) {
            layers.push_back({ &store, i });
        }
    }
};

namespace s2 {
namespace {

std::atomic<s2_store *> attached{ nullptr };

void copy_text(const std::string & text, char * to, size_t n) {
    if (n > 0) {
        const size_t length = std::min(n - 1, text.size());
        memcpy(to, text.data(), length);
        to[length] = '\0';
    }
}

} // namespace

Store * attached_store() {
    s2_store * store = attached;
    return store == nullptr ? nullptr : &store->store;
}

} // namespace s2

s2_store * s2_store_new(const s2_store_config * config, char * error, size_t n_error) {
    try {
        return new s2_store(*config);
    } catch (const std::bad_alloc &) {
        s2::copy_text("no address space for the experts", error, n_error);
    } catch (const std::exception & problem) {
        s2::copy_text(problem.what(), error, n_error);
    }
    return nullptr;
}

void s2_store_free(s2_store * store) {
    if (store == nullptr) {
        return;
    }
    s2_store * expected = store;
    s2::attached.compare_exchange_strong(expected, nullptr);
    delete store;
}

void s2_store_attach(s2_store * store) { s2::attached = store; }

int64_t s2_store_bytes_min(const s2_store * store) { return store->store.bytes_min(); }
int64_t s2_store_bytes_all(const s2_store * store) { return store->store.bytes_all(); }
int64_t s2_store_resize(s2_store * store, int64_t bytes) { return store->store.resize(bytes); }
void    s2_store_warm(s2_store * store) { store->store.warm(); }

int32_t s2_store_n_layers(const s2_store * store) { return store->store.n_layers(); }
int32_t s2_store_n_expert(const s2_store * store) { return store->store.n_expert(); }
void    s2_store_get_heat(s2_store * store, float * heat) { store->store.get_heat(heat); }
void    s2_store_set_heat(s2_store * store, const float * heat) { store->store.set_heat(heat); }

void s2_store_set_drafting(s2_store * store, bool on) { store->store.set_drafting(on); }

void s2_store_set_prefetch(s2_store * store, bool on) { store->store.set_prefetch(on); }

void * s2_store_layer(s2_store * store, int32_t layer) {
    for (auto & one : store->layers) {
        if (store->store.model_layer(one.index) == layer) {
            return &one;
        }
    }
    return nullptr;
}

void s2_store_prefer(void * layer, const float * scores, float * out) {
    const auto & one = *(const s2_store::Layer *) layer;
    one.store->prefer(one.index, scores, out);
}

void s2_store_announce(void * layer, const int32_t * experts, int32_t n) {
    const auto & one = *(const s2_store::Layer *) layer;
    one.store->announce(one.index, experts, n);
}

void s2_store_where(s2_store * store, uint8_t * where) { store->store.where(where); }
bool s2_store_is_whole(s2_store * store) { return store->store.is_whole(); }
void s2_store_asked(s2_store * store, int64_t counts[3]) { store->store.asked(counts); }

void s2_store_end_pass(s2_store * store) { store->store.end_pass(); }
void s2_store_credit(s2_store * store, int32_t n_rows) { store->store.credit(n_rows); }
void s2_store_get_stats(s2_store * store, s2_store_stats * stats) { store->store.get_stats(*stats); }

const char * s2_store_method_reason(s2_store * store) { return store->reason.c_str(); }
int32_t      s2_store_method(s2_store * store) { return (int32_t) store->store.method(); }

bool s2_store_take_fault(s2_store * store, char * text, size_t n_text) {
    std::string fault;
    if (!store->store.take_fault(fault)) {
        return false;
    }
    s2::copy_text(fault, text, n_text);
    return true;
}

bool s2_store_any_fault(void) {
    return s2::any_fault.load(std::memory_order_relaxed) > 0;
}

void s2_store_torment(s2_store * store, uint64_t seed, int32_t max_us, int32_t fail_each, int32_t evictions) {
    store->store.torment(seed, max_us, fail_each, evictions);
}
