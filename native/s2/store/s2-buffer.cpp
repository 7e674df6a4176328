#include "s2-buffer.h"

#include "../rows/s2-rows.h"
#include "s2-store-impl.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "traits.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>

#include <sys/mman.h>

namespace s2 {
namespace {

// --- the routers of a model, by its layer numbers

struct Router {
    const ggml_tensor * weights = nullptr; // F32 [n_embd, n_expert]
    const ggml_tensor * bias    = nullptr; // F32 [n_expert]
    const ggml_tensor * norm    = nullptr; // F32 [n_embd]: of the layer's feed-forward input
};

// Guesses which experts a layer will choose by showing its router the previous layer's input: the residual stream
// changes little from layer to layer.
class Routers {
  public:
    void add(const ggml_tensor * tensor) {
        int  layer, length = 0;
        char part[GGML_MAX_NAME];
        if (tensor->type != GGML_TYPE_F32 || sscanf(tensor->name, "blk.%d.%63s%n", &layer, part, &length) < 2) {
            return;
        }
        if (strcmp(part, "ffn_gate_inp.weight") == 0) {
            by_layer[layer].weights = tensor;
        } else if (strcmp(part, "ffn_gate_inp.bias") == 0) {
            by_layer[layer].bias = tensor;
        } else if (strcmp(part, "ffn_norm.weight") == 0) {
            by_layer[layer].norm = tensor;
        }
    }

    // The `n` likeliest experts of `layer` for the normalised input `x` of layer `from`; none when a router is missing.
    std::vector<int32_t> likely(int32_t layer, int32_t from, const float * x, int64_t n_embd, int32_t n) const {
        const auto next = by_layer.find(layer);
        const auto here = by_layer.find(from);
        if (next == by_layer.end() || next->second.weights == nullptr || next->second.weights->ne[0] != n_embd) {
            return {};
        }
        std::vector<float> input(x, x + n_embd);
        if (here != by_layer.end() && here->second.norm != nullptr && next->second.norm != nullptr) {
            const float * was = (const float *) here->second.norm->data;
            const float * is  = (const float *) next->second.norm->data;
            for (int64_t i = 0; i < n_embd; ++i) {
                input[i] *= was[i] == 0.0f ? 1.0f : is[i] / was[i];
            }
        }
        return best(next->second, input, n);
    }

  private:
    static std::vector<int32_t> best(const Router & router, const std::vector<float> & x, int32_t n) {
        const int64_t      n_expert = router.weights->ne[1];
        const auto         dot      = ggml_get_type_traits_cpu(GGML_TYPE_F32)->vec_dot;
        std::vector<float> logits(n_expert);
        for (int64_t e = 0; e < n_expert; ++e) {
            const char * row = (const char *) router.weights->data + e * router.weights->nb[1];
            dot((int) x.size(), &logits[e], 0, row, 0, x.data(), 0, 1);
            logits[e] += router.bias == nullptr ? 0.0f : ((const float *) router.bias->data)[e];
        }
        std::vector<int32_t> order(n_expert);
        std::iota(order.begin(), order.end(), 0);
        n = std::min<int32_t>(n, (int32_t) n_expert);
        std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
        order.resize(n);
        return order;
    }

    std::map<int32_t, Router> by_layer;
};

// --- one expert tensor

class StoredTensor : public Experts, public ggml::cpu::tensor_traits {
  public:
    StoredTensor(Store & store, Routers & routers, int32_t index) : store(store), routers(routers), index(index) {}

    void begin(Wanted * wanted, int32_t n, int32_t n_tokens) override {
        n_wanted = n;
        store.begin(index, wanted, n, n_tokens);
    }

    void begun() override {
        const int32_t layer = store.layer_of(index);
        if (row == nullptr || !store.is_first(index) || layer + 1 >= store.n_layers() || !store.wants_guesses()) {
            return;
        }
        const int64_t since  = now_ns();
        const auto    likely = routers.likely(store.model_layer(layer + 1), store.model_layer(layer), row, n_embd, 2 * n_wanted);
        store.look_ahead(layer + 1, likely.data(), (int32_t) likely.size(), since);
    }

    const char * wait(int32_t expert, int32_t n_threads) override { return store.wait(index, expert, n_threads); }
    void         done(int32_t expert) override { store.done(index, expert); }

    bool work_size(int, const ggml_tensor * op, size_t & size) override {
        size = s2_rows_work_size_experts(op);
        return true;
    }

    bool compute_forward(ggml_compute_params * params, ggml_tensor * op) override {
        if (params->ith == 0) {
            const ggml_tensor * x = op->src[1];
            const bool one_token  = op->src[2]->ne[1] == 1 && x->ne[1] == 1;
            row    = one_token ? (const float *) x->data : nullptr;
            n_embd = x->ne[0];
        }
        s2_rows_forward_experts(params, op, *this);
        return true;
    }

  private:
    Store &       store;
    Routers &     routers;
    const int32_t index;
    const float * row      = nullptr; // the pass's only one: looking ahead for several costs more than it brings
    int64_t       n_embd   = 0;
    int32_t       n_wanted = 0;
};

// --- buffers

struct Reservation {
    void *                                     base = nullptr;
    size_t                                     size = 0;
    Store *                                    store = nullptr;
    std::vector<std::unique_ptr<StoredTensor>> tensors;
};

// Of the model whose experts the store keeps.
Routers & routers_of(Store & store) {
    if (store.beside == nullptr) {
        store.beside = std::make_shared<Routers>();
    }
    return *(Routers *) store.beside.get();
}

Reservation & reservation(ggml_backend_buffer_t buffer) { return *(Reservation *) buffer->context; }

// The store whose reads are looked after between products, also those of the layers in which nobody asks it for anything:
// a disk that has read what it was given stands still until somebody gives it more. Of several stores the latest.
std::mutex between_products;
Store *    looked_after = nullptr;

void look_between() {
    const std::unique_lock<std::mutex> lock(between_products, std::try_to_lock);
    if (lock.owns_lock() && looked_after != nullptr) {
        looked_after->look();
    }
}

void look_after(Store * store) {
    const std::lock_guard<std::mutex> lock(between_products);
    looked_after = store;
    s2_rows_set_between(look_between);
}

void look_after_no_more(const Store * store) {
    const std::lock_guard<std::mutex> lock(between_products);
    looked_after = looked_after == store ? nullptr : looked_after;
}

void free_buffer(ggml_backend_buffer_t buffer) {
    Reservation * r = &reservation(buffer);
    look_after_no_more(r->store);
    if (r->base != nullptr) {
        munmap(r->base, r->size);
    }
    delete r;
}

void * get_base(ggml_backend_buffer_t buffer) { return reservation(buffer).base; }

ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor * tensor) {
    Reservation & r = reservation(buffer);
    if (tensor->view_src != nullptr || r.store == nullptr) {
        return GGML_STATUS_SUCCESS;
    }
    const int32_t index = r.store->find(tensor->name);
    if (index < 0) {
        return GGML_STATUS_FAILED;
    }
    r.tensors.push_back(std::make_unique<StoredTensor>(*r.store, routers_of(*r.store), index));
    tensor->extra = static_cast<ggml::cpu::tensor_traits *>(r.tensors.back().get());
    return GGML_STATUS_SUCCESS;
}

void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void *, size_t, size_t) {
    GGML_ABORT("%s is read by the expert store only", tensor->name);
}

void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void *, size_t, size_t) {
    GGML_ABORT("%s lies in the expert store", tensor->name);
}

void clear(ggml_backend_buffer_t, uint8_t) {}

const ggml_backend_buffer_i BUFFER = {
    /* .free_buffer   = */ free_buffer,
    /* .get_base      = */ get_base,
    /* .init_tensor   = */ init_tensor,
    /* .memset_tensor = */ nullptr,
    /* .set_tensor    = */ set_tensor,
    /* .get_tensor    = */ get_tensor,
    /* .set_tensor_2d = */ nullptr,
    /* .get_tensor_2d = */ nullptr,
    /* .cpy_tensor    = */ nullptr,
    /* .clear         = */ clear,
    /* .reset         = */ nullptr,
};

const char * buffer_type_name(ggml_backend_buffer_type_t) { return "S2_STORE"; }

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    auto r   = std::make_unique<Reservation>();
    r->store = attached_store();
    r->size  = size;
    if (size > 0) {
        // Nothing may ever read here: who does has missed the store, and had better crash than go on with zeros.
        r->base = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (r->base == MAP_FAILED) {
            return nullptr;
        }
    }
    if (r->store != nullptr) {
        look_after(r->store);
    }
    return ggml_backend_buffer_init(type, BUFFER, r.release(), size);
}

size_t get_alignment(ggml_backend_buffer_type_t) { return 64; }

class StoreBufferType : public ggml::cpu::extra_buffer_type {
  public:
    bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) override {
        if (op->op != GGML_OP_MUL_MAT_ID || op->src[1]->type != GGML_TYPE_F32) {
            return false;
        }
        const ggml_tensor * weights = op->src[0];
        if (weights->extra != nullptr) {
            return true;
        }
        const Store * store = attached_store(); // while a model is loaded
        return store != nullptr && store->find(weights->name) >= 0;
    }

    ggml::cpu::tensor_traits * get_tensor_traits(const ggml_tensor * op) override {
        return op->op == GGML_OP_MUL_MAT_ID && s2_store_holds(op->src[0]) ? (ggml::cpu::tensor_traits *) op->src[0]->extra : nullptr;
    }
};

} // namespace
} // namespace s2

ggml_backend_buffer_type_t s2_store_buffer_type(void) {
    static ggml_backend_buffer_type type = {
        /* .iface = */ {
            /* .get_name       = */ s2::buffer_type_name,
            /* .alloc_buffer   = */ s2::alloc_buffer,
            /* .get_alignment  = */ s2::get_alignment,
            /* .get_max_size   = */ nullptr,
            /* .get_alloc_size = */ nullptr,
            /* .is_host        = */ nullptr, // or others would read where nothing is
        },
        /* .device  = */ ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0),
        /* .context = */ static_cast<ggml::cpu::extra_buffer_type *>(new s2::StoreBufferType),
    };
    return &type;
}

bool s2_store_holds(const ggml_tensor * tensor) {
    return tensor->buffer != nullptr && tensor->buffer->buft == s2_store_buffer_type();
}

void s2_store_show(const ggml_tensor * tensor) {
    s2::Store * store = s2::attached_store();
    if (store != nullptr) {
        s2::routers_of(*store).add(tensor);
    }
}
