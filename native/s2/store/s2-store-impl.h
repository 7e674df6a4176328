#pragma once

// The expert store itself. Its moving parts: slots hold experts, the policy says who must go, the reader fetches, and a
// pass asks for one layer after the other.
//
// One lock guards all bookkeeping. What compute threads look at while they multiply is atomic: an entry's slot and which
// of its tensors are there. An entry that a layer holds keeps its slot until the pass is through with the layer.

#include "s2-experts.h"
#include "s2-policy.h"
#include "s2-reader.h"
#include "s2-slots.h"
#include "s2-store.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace s2 {

class Store {
  public:
    explicit Store(const s2_store_config & config); // throws std::runtime_error, std::bad_alloc
    ~Store();

    int32_t find(const char * name) const; // index of the tensor; -1: not one of ours
    int32_t layer_of(int32_t tensor) const { return tensors[tensor].layer; }
    bool    is_first(int32_t tensor) const { return tensors[tensor].part == 0; }
    int32_t model_layer(int32_t layer) const { return layers[layer].number; }
    int32_t n_layers() const { return (int32_t) layers.size(); }
    int32_t n_expert() const { return largest_layer; }

    // A pass, see Experts.
    void         begin(int32_t tensor, Wanted * wanted, int32_t n, int32_t n_tokens);
    const char * wait(int32_t tensor, int32_t expert, int32_t n_threads);
    void         done(int32_t tensor, int32_t expert);
    bool         may_miss() const { return !whole.load(std::memory_order_relaxed) && !sync; }
    void         look_ahead(int32_t layer, const int32_t * experts, int32_t n); // likely needed there, likeliest first
    void         end_pass();
    void         credit(int32_t n_rows);

    int64_t     bytes_min() const;
    int64_t     bytes_all() const;
    int64_t     resize(int64_t bytes);
    void        warm();
    void        get_heat(float * heat);
    void        set_heat(const float * heat);
    void        get_stats(s2_store_stats & out);
    bool        take_fault(std::string & text);
    void        torment(uint64_t seed, int32_t max_us, int32_t fail_each, int32_t evictions);
    std::string reason() const { return reader->reason(); }
    Method      method() const { return reader->method(); }

    std::shared_ptr<void> beside; // what the store's user keeps with it

  private:
    struct Tensor {
        std::string name;
        int32_t     layer, part, file;
        int64_t     offset, stride, bytes;
        int64_t     at; // in the slot
    };

    struct Layer {
        int32_t              number, n_expert;
        int32_t              size_class = 0;
        int64_t              slot_bytes = 0;
        std::vector<int32_t> tensors;
        uint32_t             all() const { return (1u << tensors.size()) - 1; }
    };

    // One expert of one layer.
    struct Entry {
        std::atomic<int32_t>  slot{ -1 };
        std::atomic<uint32_t> ready{ 0 };         // bit i: its i-th tensor is in the slot
        std::atomic<bool>     streamed{ false };  // its slot holds one tensor, for one product
        uint32_t              reading = 0;        // bit i: in flight
        bool                  held = false;       // by the layer the pass is in
        bool                  ahead = false;      // read on a guess, not asked for yet
        bool                  warming = false;    // read in the background
        bool                  abandoned = false;  // goes when what is in flight has come
        bool                  passing = false;    // in `stream`
        bool                  failed = false;
        bool                  resident = false;   // all of it is there
    };

    struct Guess {
        int32_t expert;
        bool    there; // it was in memory
    };

    struct Used {
        Expert   expert;
        uint32_t rows;
        float    share; // of the rows
    };

    // --- layout
    void add_tensor(const s2_store_tensor & tensor, int32_t n_files);
    void make_classes();
    void set_limits(int64_t bytes);

    // --- under the lock
    Entry & entry(Expert expert) { return entries[expert.layer][expert.index]; }
    void    enter(int32_t layer, const Wanted * wanted, int32_t n, int32_t n_tokens, bool fresh, std::unique_lock<std::mutex> & lock);
    void    pass_through(Expert expert);
    void    leave();
    void    put_in_order(int32_t layer, int32_t part, Wanted * wanted, int32_t n);
    void    note(int32_t layer, const Wanted * wanted, int32_t n, int32_t n_tokens);
    bool    come_to(const Tensor & tensor);
    int32_t slot_for(Expert expert); // a free one, or a victim's; -1: all are held or in flight
    void    drop(Expert expert);
    void    shrink();
    void    ask(Expert expert, bool demand, std::vector<Read> & reads);
    Read    read_of(Expert expert, int32_t part, bool demand);
    void    submit(std::vector<Read> & reads);
    void    hold(Expert expert);
    void    count(const Entry & entry);
    void    end_guesses(int32_t layer);
    void    call_off(Expert expert);
    void    judge_guesses(int32_t layer, const Wanted * wanted, int32_t n);
    void    find_staging(std::vector<Expert> & given, std::unique_lock<std::mutex> & lock);
    void    stream_next();
    void    came(uint64_t tag, const std::string & error);
    void    warm_next();
    void    judge_whole();
    void    evict_random();

    uint64_t tag_of(Expert expert, int32_t part) const;

    const bool                            sync;
    std::vector<Tensor>                   tensors;
    std::vector<Layer>                    layers;
    std::vector<int32_t>                  class_of; // by layer
    std::vector<std::unique_ptr<Slots>>   classes;
    std::vector<std::unique_ptr<Entry[]>> entries;  // by layer
    int32_t                               largest_layer = 0;
    int64_t                               n_experts = 0;
    std::unique_ptr<Policy>               policy;

    std::mutex              mutex;
    std::condition_variable changed;
    std::atomic<bool>       whole{ false };     // all experts are in memory and stay
    std::atomic<int32_t>    current{ -1 };      // layer the pass is in; -1: no pass
    uint32_t                begun = 0;          // bit i: the pass has begun the layer's i-th tensor
    std::atomic<bool>       lost{ false };      // the product began after a read had failed: nothing is held for it
    int32_t                 entered = -1;       // the layer that holds `held`
    std::vector<Expert>     held;
    std::vector<Expert>     guesses;            // entries read ahead and not asked for yet
    std::vector<Guess>      predicted;          // for the next layer, likeliest first
    int32_t                 predicted_layer = -1;
    std::vector<float>      came_true;          // by rank: share of predictions, lately
    std::vector<Expert>     expected;           // entries in memory that the next layer likely asks for
    std::vector<Used>       used;               // of the pass, to be credited

    // Experts of the current layer that found no slot: their tensors pass through these.
    std::vector<Expert>  stream;
    size_t               stream_at = 0;
    int32_t              stream_tensor = -1;
    std::vector<int32_t> staging;

    std::vector<Expert> to_warm; // hottest last
    int32_t             warming = 0, n_resident = 0;

    std::atomic<bool>    faulty{ false };
    std::string          fault;
    s2_store_stats       stats{};
    std::atomic<int64_t> stall_ns{ 0 }, whole_asked{ 0 }, n_passes{ 0 };

    std::atomic<int32_t>  torment_us{ 0 }, torment_fail{ 0 }, torment_evict{ 0 };
    std::atomic<uint64_t> torment_n{ 0 };
    std::mt19937_64       random;

    std::unique_ptr<Reader> reader; // last: its threads call back until it is gone
};

// The store that models loaded now keep their experts in; null: none.
Store * attached_store();

// Stores with a fault that nobody took yet.
extern std::atomic<int32_t> any_fault;

} // namespace s2
