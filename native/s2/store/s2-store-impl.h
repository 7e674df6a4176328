#pragma once

// The expert store itself. Its moving parts: slots hold experts, the policy says who must go, the look-ahead which guesses
// are worth reading, the reader fetches, and a pass asks for one layer after the other.
//
// One lock guards all bookkeeping. What compute threads look at while they multiply is atomic: an entry's slot and which
// of its tensors are there. An entry that a layer holds keeps its slot until the pass is through with the layer.
//
// s2-store.cpp has the store's life, its budget and its figures, s2-store-reads.cpp what comes from the disk,
// s2-store-pass.cpp a pass's way through the layers, s2-store-stream.cpp experts without a slot of their own,
// s2-store-guess.cpp what is read before it is asked for, and s2-store-draft.cpp what drafts are for: choosing among what is
// there, and saying what will be needed.

#include "s2-experts.h"
#include "s2-layout.h"
#include "s2-lookahead.h"
#include "s2-policy.h"
#include "s2-reader.h"
#include "s2-slots.h"
#include "s2-store.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace s2 {

constexpr int32_t NARROW_PASS = 32; // rows that are told apart, see Wanted

int64_t now_ns(); // of a clock that only goes forward

class Store {
  public:
    explicit Store(const s2_store_config & config); // throws std::runtime_error, std::bad_alloc
    ~Store();

    int32_t find(const char * name) const { return layout.find(name); }
    int32_t layer_of(int32_t tensor) const { return layout.tensor(tensor).layer; }
    bool    is_first(int32_t tensor) const { return layout.tensor(tensor).part == 0; }
    int32_t model_layer(int32_t layer) const { return layout.layer(layer).number; }
    int32_t n_layers() const { return layout.n_layers(); }
    int32_t n_expert() const { return layout.largest_layer(); }

    // While a pass computes: takes back what has been read, and has more read.
    void look() {
        if (!whole) {
            reader->look();
        }
    }

    // A pass, see Experts.
    void         begin(int32_t tensor, Wanted * wanted, int32_t n, int32_t n_tokens);
    const char * wait(int32_t tensor, int32_t expert, int32_t n_threads);
    void         done(int32_t tensor, int32_t expert);
    void         end_pass();
    void         credit(int32_t n_rows);

    // Whether to think about the layer behind this one, and what came of it: experts likely needed there, likeliest first.
    // `since`: when the thinking began, of now_ns.
    bool wants_guesses();
    void look_ahead(int32_t layer, const int32_t * experts, int32_t n, int64_t since);

    // Drafts, see s2-store.h.
    void set_drafting(bool on);
    void set_prefetch(bool on) { prefetch = on; }
    void prefer(int32_t layer, const float * scores, float * out) const;
    void announce(int32_t layer, const int32_t * experts, int32_t n);
    void where(uint8_t * out) const;
    void asked(int64_t counts[3]);
    bool is_whole() const { return whole.load(std::memory_order_relaxed); }

    int64_t     bytes_min() const;
    int64_t     bytes_all() const;
    int64_t     resize(int64_t bytes);
    void        warm();
    void        get_heat(float * heat);
    void        set_heat(const float * heat);
    void        get_stats(s2_store_stats & out);
    bool        take_fault(std::string & text);
    void        torment(uint64_t seed, int32_t max_us, int32_t fail_each, int32_t evictions);
    bool        may_miss() const { return !whole.load(std::memory_order_relaxed) && !sync; }
    std::string reason() const { return reader->reason(); }
    Method      method() const { return reader->method(); }

    std::shared_ptr<void> beside; // what the store's user keeps with it

  private:
    using Lock = std::unique_lock<std::mutex>;

    // One expert of one layer.
    struct Entry {
        std::atomic<int32_t>  slot{ -1 };
        std::atomic<uint32_t> ready{ 0 };         // bit i: its i-th tensor is in the slot
        std::atomic<bool>     streamed{ false };  // its slot holds one tensor, for one product
        uint32_t              reading = 0;        // bit i: in flight
        bool                  held = false;       // by the layer the pass is in
        bool                  ahead = false;      // read on a guess, not asked for yet
        bool                  guessed = false;    // held, and had been read on a guess
        bool                  awaited = false;    // announced for the verify pass to come
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

    // Experts of the current layer that found no slot: the tensor that is multiplied passes through a few slots.
    struct Stream {
        std::vector<Expert>  experts; // in the order in which they pass
        size_t               next = 0;
        int32_t              tensor = -1;
        std::vector<int32_t> free; // slots
    };

    // What a layer of a pass of one token waited for.
    struct Waited {
        bool                 counts = false;
        int32_t              n_missed = 0, n_guessed = 0;
        std::atomic<int64_t> for_missed{ 0 }, for_guessed{ 0 }; // ns
    };

    // --- all but what says otherwise: under the lock. A `Lock &` is given up while reads are waited for.

    Entry & entry(Expert expert) { return entries[expert.layer][expert.index]; }
    Slots & slots_of(int32_t layer) { return *classes[layout.class_of()[layer]]; }

    // s2-store.cpp
    ReaderParams reader_params(const s2_store_config & config); // at the start
    void         set_limits(int64_t bytes);
    int32_t      slot_for(Expert expert); // a free one, or a victim's; -1: all are held or in flight
    void         drop(Expert expert);
    void         shrink();
    void         judge_whole();
    void         evict_random();

    // s2-store-reads.cpp
    Read read_of(Expert expert, int32_t part, bool demand);
    void ask(Expert expert, bool demand, std::vector<Read> & reads);
    void submit(std::vector<Read> & reads);
    void came(uint64_t tag, const std::string & error); // takes the lock
    void call_off(Expert expert);
    void warm_next();
    template <class Condition> void wait_until(Lock & lock, Condition over);

    // s2-store-pass.cpp
    bool come_to(const Layout::Tensor & tensor); // without the lock
    void begin_whole(int32_t layer, const Wanted * wanted, int32_t n, int32_t n_tokens, bool fresh); // takes the lock
    void enter(int32_t layer, const Wanted * wanted, int32_t n, int32_t n_tokens, bool fresh, Lock & lock);
    void leave();
    void hold(Expert expert);
    void let_go(Expert expert);
    void put_in_order(int32_t layer, int32_t part, Wanted * wanted, int32_t n);
    void count(int32_t layer, const Wanted * wanted, int32_t n);
    void note(int32_t layer, const Wanted * wanted, int32_t n, int32_t n_tokens);

    // s2-store-stream.cpp
    void pass_through(Expert expert);
    void find_way(std::vector<Expert> & given, Lock & lock);
    void stream_next();
    void end_stream();

    // s2-store-guess.cpp
    void guess_next();
    bool enough_in_flight();
    bool read_ahead(Expert expert, std::vector<Read> & reads);
    void judge_guesses(int32_t layer, const Wanted * wanted, int32_t n);
    void end_guesses(int32_t layer);
    void judge_waits();
    void forget_guess(Expert expert);

    // s2-store-draft.cpp
    int32_t slot_on_demand(Expert expert);
    void await(Expert expert);
    void unpin(Expert expert);
    void forget_awaited();

    const bool                            sync;
    const Layout                          layout;
    std::vector<std::unique_ptr<Slots>>   classes;
    std::vector<std::unique_ptr<Entry[]>> entries; // by layer
    std::unique_ptr<Policy>               policy;
    std::mutex                            mutex;

    // The pass.
    std::atomic<bool>    whole{ false };    // all experts are in memory and stay
    std::atomic<bool>    sampling{ true };  // while they are: the next pass that is credited is noted all the same
    int32_t              unheard = 0;       // passes credited since one was noted
    std::atomic<int32_t> current{ -1 };     // layer the pass is in; -1: no pass
    uint32_t             begun = 0;         // bit i: the pass has begun the layer's i-th tensor
    std::atomic<bool>    lost{ false };     // the product began after a read had failed: nothing is held for it
    int32_t              entered = -1;      // the layer that holds `held`
    std::vector<Expert>  held;
    Stream               stream;
    std::vector<Used>    used;              // of the pass, to be credited
    bool                 used_wide = false; // it had too many rows to tell them apart

    // Looking ahead.
    Lookahead           lookahead;
    Waited              waited;
    std::vector<Expert> guesses;         // entries read ahead and not asked for yet
    std::vector<Expert> hopes;           // guesses that are worth a read and have not begun, likeliest last
    int32_t             n_begun = 0;     // of those of the latest look
    int64_t             look_took = 0;   // ns
    std::vector<Guess>  predicted;       // for the next layer, likeliest first
    int32_t             predicted_layer = -1;
    std::vector<Expert> expected;        // entries in memory that the next layer likely asks for

    // Drafting.
    std::atomic<bool>   prefetch{ true };
    std::atomic<bool>   drafting{ false }; // passes are drafts: neither counted nor credited
    std::vector<Expert> awaited;           // by the verify pass that follows them

    int64_t             n_came = 0;
    std::vector<Expert> to_warm; // hottest last
    int32_t             warming = 0, n_resident = 0;

    std::atomic<bool>    faulty{ false };
    std::string          fault;
    s2_store_stats       stats{};
    std::atomic<int64_t> stall_ns{ 0 }, whole_asked{ 0 }, n_passes{ 0 };

    std::atomic<int32_t>  torment_us{ 0 }, torment_fail{ 0 }, torment_evict{ 0 };
    std::atomic<uint64_t> torment_n{ 0 };
    std::mt19937_64       random;

    std::unique_ptr<Reader> reader; // last: it calls back until it is gone
};

// Until `over` says so; the pass stands still meanwhile.
template <class Condition> void Store::wait_until(Lock & lock, Condition over) {
    if (over()) {
        return;
    }
    const int64_t start = now_ns();
    while (!over()) {
        lock.unlock();
        reader->wait_until([&] {
            const std::lock_guard<std::mutex> again(mutex);
            return over();
        });
        lock.lock();
    }
    stall_ns += now_ns() - start;
}

// The store that models loaded now keep their experts in; null: none.
Store * attached_store();

// Stores with a fault that nobody took yet.
extern std::atomic<int32_t> any_fault;

} // namespace s2
