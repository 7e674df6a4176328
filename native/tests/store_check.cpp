// The expert store's promises, checked on real files: store_check FOLDER [SEED [ROUNDS [CASE]]]
//
// A pass is made as the kernels make it, and every byte that they would multiply is compared with the file's. ROUNDS (1)
// repeats the cases that depend on chance with other seeds. Prints a line per case; exits with 1 when something is wrong and
// with 3 when a case does not come to its end.

#include "store_model.h"

#include <cmath>
#include <cstdlib>
#include <memory>

namespace {

using namespace check;
using namespace std::chrono_literals;

constexpr int64_t KIB = 1024, MIB = 1024 * KIB;
constexpr int     THREADS = 3;
constexpr int     METHODS[] = { S2_READ_BUFFERED, S2_READ_DIRECT, S2_READ_URING, S2_READ_URING_BUFFERED };

struct Place {
    std::string folder;
    uint64_t    seed;
};

// Layers of three sizes; two of one size have different numbers of experts, and one size has very few.
std::vector<LayerShape> shapes() {
    return {
        { 1, 12, { 20480, 20480, 24576 } }, { 2, 7, { 20480, 20480, 24576 } }, { 3, 12, { 30000, 9000 } },
        { 4, 16, { 30000, 9000 } },         { 6, 3, { 150000, 70000 } },       { 7, 12, { 20480, 20480, 24576 } },
    };
}

// As many experts in every layer, all of one size.
std::vector<LayerShape> even_shapes() {
    return { { 0, 16, { 16384, 12288, 8192 } }, { 1, 16, { 16384, 12288, 8192 } }, { 2, 16, { 16384, 12288, 8192 } } };
}

std::string text(int64_t number) {
    return std::to_string(number);
}

template <class Condition> bool comes_true(Condition condition) {
    for (int i = 0; i < 20000; ++i) {
        if (condition()) {
            return true;
        }
        std::this_thread::sleep_for(1ms);
    }
    return false;
}

// What holds at any time between two passes, once what is in flight has come.
void expect_order(const OpenStore & store, int64_t bytes, const std::string & where) {
    const int64_t most = std::max(bytes, s2_store_bytes_min(store));
    expect(comes_true([&] { return store.stats().bytes <= most; }), where + ": " + text(store.stats().bytes) + " bytes of " + text(most));
    const s2_store_stats s = store.stats();
    expect(s.n_resident <= s.n_slots, where + ": more experts than slots");
    expect(s.hits + s.late <= s.asked, where + ": " + text(s.hits) + " hits and " + text(s.late) + " late of " + text(s.asked));
    expect(s.prefetch_used <= s.prefetched, where + ": more guesses used than made");
    expect(s.bytes_prefetched <= s.bytes_read, where + ": more bytes guessed than read");
    expect(s.evicted <= s.reads, where + ": more experts given up than read");
    expect(s2::any_fault == 0, where + ": a fault that nobody has");
}

void expect_all_works(Passes & passes, const std::string & where) {
    PassPlan plan;
    plan.heed = false;
    plan.most = 100;
    expect(!passes.run(plan).lost, where + ": the next pass is lost, too");
}

PassPlan some_plan(Random & random) {
    constexpr int32_t TOKENS[] = { 1, 1, 5, 64 };
    PassPlan plan;
    plan.n_tokens = TOKENS[random() % 4];
    plan.most     = plan.n_tokens == 1 ? 4 : plan.n_tokens == 5 ? 10 : 100;
    plan.guesses  = plan.n_tokens <= 5 && random() % 2 ? 6 : 0;
    return plan;
}

// --- cases

// Every expert in memory: read once, then never again; the figures are exact.
void everything_fits(const Place & place) {
    for (const bool packed : { false, true }) {
        const Model model(place.folder, shapes(), packed);
        OpenStore store(model, { INT64_MAX / 2, S2_READ_AUTO });
        Team team(THREADS);
        Passes passes(model, store, team, place.seed);
        expect(s2_store_bytes_all(store) == store.stats().bytes, "a large budget is not all of it");
        const PassResult cold = passes.run({ 1, 3 });
        s2_store_stats s = store.stats();
        expect(s.passes == 1 && s.asked == cold.asked && s.hits == 0 && s.late == 0, "figures of the first pass");
        expect(s.reads == cold.asked && s.stall_ns > 0, "every miss is one read");
        s2_store_warm(store);
        expect(comes_true([&] { return store.stats().n_resident == model.n_experts; }), "warming does not come to its end");
        const int64_t n_read = store.stats().reads;
        expect(n_read == model.n_experts && store.stats().bytes_read == model.expert_bytes, "an expert was read twice or never");
        expect(!store->may_miss(), "all is there, and yet it may miss");
        int64_t asked = cold.asked;
        for (int i = 0; i < 5; ++i) {
            asked += passes.run({ i == 3 ? 64 : 2, 100 }).asked;
        }
        s = store.stats();
        expect(s.reads == n_read && s.evicted == 0, "reads although all is there");
        expect(s.passes == 6 && s.asked == asked && s.hits == asked - cold.asked, "figures when all is there");
        expect_order(store, s2_store_bytes_all(store), "everything fits");
        s2_store_resize(store, 0); // and back from there
        expect_order(store, 0, "shrunk");
        asked += passes.run({ 5, 100 }).asked;
        expect(store.stats().asked == asked && store.stats().reads > n_read && store.stats().passes == 7, "figures after shrinking");
    }
}

// The same few experts again and again are hits as soon as they fit, whatever else is asked for once.
void hits_where_they_fit(const Place & place) {
    const Model model(place.folder, even_shapes(), false);
    for (const int32_t slots : { 2, 6, 11, 12, 30 }) {
        OpenStore store(model, {});
        s2_store_resize(store, s2_store_bytes_all(store) * slots / model.n_experts);
        expect(store.stats().n_slots == slots, text(store.stats().n_slots) + " slots of " + text(slots));
        Team team(THREADS);
        Passes passes(model, store, team, place.seed);
        passes.script = { { 1, 5, 9, 11 }, { 0, 1, 2, 3 }, { 15, 3, 8, 1 } };
        for (int i = 0; i < 3; ++i) {
            passes.run({});
            s2_store_credit(store, 1);
        }
        const s2_store_stats before = store.stats();
        passes.run({});
        const s2_store_stats after = store.stats();
        if (slots >= 12) {
            expect(after.hits - before.hits == 12 && after.reads == before.reads, "no hits with " + text(slots) + " slots");
        } else {
            expect(after.hits - before.hits < 12 && after.bytes_read > before.bytes_read, "hits with " + text(slots) + " slots");
        }
        expect_order(store, store.stats().bytes, "hits");
    }
}

// Every byte right from the least memory to all of it, narrow and wide, with guesses.
void every_size(const Place & place) {
    Random random(place.seed);
    constexpr int SIZES = 8;
    for (const bool packed : { false, true }) {
        const Model model(place.folder, shapes(), packed);
        for (int i = 0; i <= SIZES; ++i) {
            OpenStore store(model, { 0, METHODS[(i + packed) % 4], i == 4 });
            const int64_t least = s2_store_bytes_min(store), bytes = least + (s2_store_bytes_all(store) - least) * i / SIZES;
            s2_store_resize(store, bytes);
            Team team(1 + (int) (random() % THREADS));
            Passes passes(model, store, team, random());
            int64_t asked = 0;
            for (int n = 0; n < 5; ++n) {
                asked += passes.run(some_plan(random)).asked;
                if (random() % 2) { // else it was a draft
                    s2_store_credit(store, 1);
                }
                expect_order(store, bytes, "size " + text(i));
            }
            expect(store.stats().asked == asked && store.stats().passes == 5, "size " + text(i) + ": passes or experts not counted");
        }
    }
}

// Reads come late and in another order, and experts vanish before each layer.
void torment(const Place & place) {
    Random random(place.seed);
    const Model model(place.folder, shapes(), random() % 2);
    for (const int share : { 0, 3, 10 }) {
        OpenStore store(model, { 0, METHODS[random() % 4] });
        const int64_t bytes = s2_store_bytes_all(store) * share / 10;
        s2_store_resize(store, bytes);
        s2_store_torment(store, place.seed, 500, 0, 3);
        s2_store_warm(store);
        Team team(THREADS);
        Passes passes(model, store, team, random());
        for (int n = 0; n < 8; ++n) {
            PassPlan plan = some_plan(random);
            plan.linger_us = n % 2 ? 50 : 0;
            passes.run(plan);
            expect_order(store, bytes, "torment");
        }
        expect(store.stats().evicted > 0, "nothing was evicted");
    }
}

// A read that fails loses the pass and no more than that.
void failing_reads(const Place & place) {
    Random random(place.seed);
    const Model model(place.folder, shapes(), random() % 2);
    int n_lost = 0;
    for (const int share : { 0, 2, 6 }) {
        OpenStore store(model, { 0, METHODS[random() % 4] });
        const int64_t bytes = s2_store_bytes_all(store) * share / 10;
        s2_store_resize(store, bytes);
        Team team(THREADS);
        Passes passes(model, store, team, random());
        for (int n = 0; n < 16; ++n) {
            s2_store_torment(store, random(), n % 3 ? 300 : 0, 1 + (int) (random() % 40), n % 2);
            PassPlan plan = some_plan(random);
            plan.heed    = random() % 2;
            plan.stop_at = random() % 4 ? INT32_MAX : (int32_t) (random() % model.tensors.size());
            const bool lost = passes.run(plan).lost;
            std::string fault;
            const bool taken = store.take_fault(fault);
            n_lost += lost;
            expect(taken || !lost, "a lost pass has no fault");
            expect(lost || !taken || plan.stop_at != INT32_MAX, "a fault and no lost pass: " + fault);
            expect(!taken || fault.find(model.paths[0]) == 0 || fault.find(model.paths[1]) == 0, "the fault names no file: " + fault);
            expect(!store.take_fault(fault), "the fault was taken and is still there");
            expect_order(store, bytes, "failing reads");
            s2_store_torment(store, 0, n % 3 ? 300 : 0, 0, 0);
            if (n % 2) {
                expect_all_works(passes, "failing reads");
            }
        }
    }
    expect(n_lost > 5, "only " + text(n_lost) + " passes were lost");
}

// What nobody asked for may fail unseen: who asks has it read again.
void failing_guesses(const Place & place) {
    const Model model(place.folder, even_shapes(), true);
    OpenStore store(model, { INT64_MAX / 2 });
    s2_store_torment(store, 1, 0, 1, 0);
    s2_store_warm(store);
    expect(comes_true([&] { return store.stats().reads == model.n_experts; }), "warming stopped at a fault");
    s2_store_torment(store, 1, 0, 0, 0);
    std::this_thread::sleep_for(20ms);
    expect(store.stats().n_resident == 0, "experts are there that could not be read");
    Team team(THREADS);
    Passes passes(model, store, team, place.seed);
    expect_all_works(passes, "failing guesses");
    expect_order(store, s2_store_bytes_all(store), "failing guesses");
}

// What is in flight when its layer asks is late and no hit.
void late_guesses(const Place & place) {
    const Model model(place.folder, even_shapes(), false);
    OpenStore store(model, { INT64_MAX / 2 });
    Team team(1);
    Passes passes(model, store, team, place.seed);
    const int32_t guesses[] = { 1, 2, 3 };
    s2_store_torment(store, place.seed, 200000, 0, 0);
    store->look_ahead(0, guesses, 3, s2::now_ns());
    passes.script = { { 4, 2, 1 }, { 0 }, { 0 } };
    passes.run({});
    const s2_store_stats s = store.stats();
    expect(s.asked == 5 && s.hits == 0 && s.late == 2, text(s.hits) + " hits and " + text(s.late) + " late of " + text(s.asked));
    expect(s.prefetched == 3 && s.prefetch_used == 2 && s.reads == 6, "guesses are not counted as they were");
    constexpr int64_t EXPERT = 16384 + 12288 + 8192; // the wrong one may have been called off
    expect(s.bytes_prefetched >= 2 * EXPERT && s.bytes_prefetched <= 3 * EXPERT, "bytes of guesses");
    expect(s.bytes_read == s.bytes_prefetched + 3 * EXPERT, "bytes of what was not guessed");
}

// Guesses that could not be begun before their layer has come take nobody's slot.
void guesses_wait_their_turn(const Place & place) {
    constexpr int64_t EXPERT = 2 << 20;
    const Model model(place.folder, { { 0, 16, { EXPERT } }, { 1, 16, { EXPERT } } }, true);
    OpenStore store(model, { 16 * EXPERT });
    Team team(1);
    Passes passes(model, store, team, place.seed);
    const std::vector<int32_t> first = { 0, 1, 2, 3, 4, 5, 6, 7 };
    passes.script = { first, first };
    passes.run({});
    expect(store.stats().n_resident == 16, "the slots are not full: " + text(store.stats().n_resident));
    const int32_t guesses[] = { 8, 9, 10, 11 };
    s2_store_torment(store, place.seed, 200000, 0, 0);
    store->look_ahead(1, guesses, 4, s2::now_ns());
    expect(store.stats().prefetched == 2 && store.stats().n_resident == 14, "more guesses than are read at a time took slots");
    passes.script = { first, { 8 } };
    passes.run({});
    const s2_store_stats s = store.stats();
    expect(s.reads == 16 + s.prefetched + (s.asked - 16 - s.hits - s.late), "reads of nothing that was asked for or guessed");
}

// A fault in a guess that is asked for before all of it has come.
void guesses_that_fail_late(const Place & place) {
    Random random(place.seed);
    const Model model(place.folder, even_shapes(), false);
    OpenStore store(model, { INT64_MAX / 2 });
    Team team(THREADS);
    Passes passes(model, store, team, random());
    for (int n = 0; n < 30; ++n) {
        s2_store_torment(store, random(), 2000, 3, 0);
        std::vector<int32_t> experts = { 1, 2, 3, 4 };
        passes.script = { experts, experts, experts };
        store->look_ahead(0, experts.data(), 4, s2::now_ns());
        store->look_ahead(1, experts.data(), 4, s2::now_ns());
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
        s2_store_torment(store, 0, 0, 0, 16);
        PassPlan plan;
        plan.heed = n % 2;
        const bool  lost = passes.run(plan).lost;
        std::string fault;
        expect(store.take_fault(fault) == lost, "fault and pass do not agree: " + fault);
    }
    expect_order(store, s2_store_bytes_all(store), "guesses that fail late");
}

// Passes end anywhere, their reads still in flight.
void abandoned_passes(const Place & place) {
    Random random(place.seed);
    const Model model(place.folder, shapes(), random() % 2);
    for (const int share : { 0, 4 }) {
        OpenStore store(model, { 0, METHODS[random() % 4] });
        const int64_t bytes = s2_store_bytes_all(store) * share / 10;
        s2_store_resize(store, bytes);
        s2_store_torment(store, place.seed, 2000, 0, share ? 2 : 0);
        Team team(THREADS);
        Passes passes(model, store, team, random());
        for (int32_t stop = 0; stop <= (int32_t) model.tensors.size(); ++stop) {
            PassPlan plan = some_plan(random);
            plan.stop_at = stop;
            passes.run(plan);
            if (stop % 3 == 0) {
                expect_order(store, bytes, "abandoned");
            }
            if (stop % 4 == 0) {
                s2_store_warm(store);
            }
        }
        expect_order(store, bytes, "abandoned");
    }
}

// Runs `job` again and again in a thread of its own until this is destroyed.
class Meanwhile {
  public:
    explicit Meanwhile(std::function<void()> job) : thread([this, job = std::move(job)] {
        while (!stopped) {
            job();
        }
    }) {}
    ~Meanwhile() {
        stopped = true;
        thread.join();
    }

  private:
    std::atomic<bool> stopped{ false };
    std::thread       thread;
};

// The budget changes all the time, down to the least and up to all.
void resize_storm(const Place & place) {
    Random random(place.seed);
    const Model model(place.folder, shapes(), random() % 2);
    OpenStore store(model, { INT64_MAX / 2, METHODS[random() % 4] });
    const int64_t least = s2_store_bytes_min(store), most = s2_store_bytes_all(store);
    Team team(THREADS);
    Passes passes(model, store, team, random());
    const uint64_t seed = random();
    int64_t n_resized = 0, asked = 0;
    {
        Random other(seed);
        const Meanwhile storm([&] {
            const int kind = (int) (other() % 4);
            const int64_t bytes = kind == 0 ? least : kind == 1 ? most : least + (int64_t) (other() % (uint64_t) (most - least));
            expect(s2_store_resize(store, bytes) >= least, "resize gives less than the least");
            if (kind == 1) {
                s2_store_warm(store);
            }
            const s2_store_stats s = store.stats();
            expect(s.hits + s.late <= s.asked && s.bytes <= most, "figures in a storm");
            ++n_resized;
            std::this_thread::sleep_for(std::chrono::microseconds(other() % 3000));
        });
        for (int n = 0; n < 40; ++n) {
            PassPlan plan = some_plan(random);
            plan.linger_us = n % 4 == 0 ? 100 : 0;
            asked += passes.run(plan).asked;
            s2_store_torment(store, random(), n % 3 == 0 ? 300 : 0, 0, n % 5 == 0);
        }
    }
    expect(n_resized > 10, "hardly a storm");
    expect(store.stats().asked == asked && store.stats().passes == 40, "figures after a storm");
    s2_store_resize(store, least);
    expect_order(store, least, "after a storm");
    expect_all_works(passes, "after a storm");
}

// A budget that falls when nothing can go at once is kept as soon as it can.
void shrunk_while_busy(const Place & place) {
    const Model model(place.folder, even_shapes(), true);
    OpenStore store(model, { INT64_MAX / 2 });
    s2_store_torment(store, 1, 50000, 0, 0);
    s2_store_warm(store);
    s2_store_resize(store, 0);
    expect_order(store, 0, "shrunk while reading");
    s2_store_torment(store, 1, 0, 0, 0);
    Team team(THREADS);
    Passes passes(model, store, team, place.seed);
    for (const bool whole : { false, true }) {
        s2_store_resize(store, INT64_MAX / 2);
        if (whole) {
            s2_store_warm(store);
            expect(comes_true([&] { return store.stats().n_resident == model.n_experts; }), "warming");
        }
        PassPlan plan;
        plan.most      = 100;
        plan.linger_us = 20;
        plan.in_last   = [&] { expect(s2_store_resize(store, 0) > s2_store_bytes_min(store), "the pass lost its experts"); };
        passes.run(plan);
        const int64_t bytes = store.stats().bytes;
        expect(bytes == s2_store_bytes_min(store), text(bytes) + " bytes after a pass in which it was shrunk");
    }
}

// All is in memory and then is not, in the middle of layers.
void losing_all(const Place & place) {
    Random random(place.seed);
    const Model model(place.folder, even_shapes(), true);
    OpenStore store(model, { INT64_MAX / 2 });
    const int64_t most = s2_store_bytes_all(store);
    Team team(THREADS);
    Passes passes(model, store, team, random());
    int64_t asked = 0;
    int     n_whole = 0;
    for (int n = 0; n < 25; ++n) {
        s2_store_resize(store, most);
        s2_store_warm(store);
        if (n % 2) {
            n_whole += comes_true([&] { return store.stats().n_resident == model.n_experts; });
        }
        std::thread shrinks([&, us = random() % 3000] {
            std::this_thread::sleep_for(std::chrono::microseconds(us));
            s2_store_resize(store, most / 5);
        });
        for (int i = 0; i < 3; ++i) {
            PassPlan plan = some_plan(random);
            plan.linger_us = 20;
            asked += passes.run(plan).asked;
        }
        shrinks.join();
        expect_order(store, most / 5, "losing all");
    }
    expect(n_whole == 12, "never all in memory");
    expect(store.stats().asked == asked && store.stats().passes == 75, "figures when losing all");
}

// Somebody else takes faults and reads figures meanwhile.
void a_thief(const Place & place) {
    Random random(place.seed);
    const Model model(place.folder, even_shapes(), false);
    OpenStore store(model, {});
    s2_store_resize(store, s2_store_bytes_all(store) / 3);
    Team team(THREADS);
    Passes passes(model, store, team, random());
    std::atomic<int> n_taken{ 0 };
    int n_lost = 0;
    const Meanwhile thief([&] {
        std::string fault;
        n_taken += store.take_fault(fault);
        store.stats();
        std::this_thread::yield();
    });
    for (int n = 0; n < 20; ++n) {
        s2_store_torment(store, random(), 200, 20, 0);
        PassPlan plan = some_plan(random);
        plan.heed = false;
        n_lost += passes.run(plan).lost;
        std::string fault;
        n_taken += store.take_fault(fault);
        expect(comes_true([&] { return n_taken == n_lost; }), text(n_taken) + " faults of " + text(n_lost) + " lost passes");
        expect(s2::any_fault == 0, "faults were taken more than once");
    }
    expect(n_lost > 3, "hardly a pass was lost");
}

int64_t resident_bytes() {
    int64_t pages = 0, all = 0;
    std::ifstream("/proc/self/statm") >> all >> pages;
    return pages * sysconf(_SC_PAGESIZE);
}

// Memory that the store gives back is the system's again.
void memory_goes_back(const Place & place) {
    const Model model(place.folder, { { 0, 48, { MIB / 2 } }, { 1, 16, { 300 * KIB, 212 * KIB } } }, true);
    OpenStore store(model, {});
    Team team(1);
    Passes passes(model, store, team, place.seed);
    const int64_t most = s2_store_bytes_all(store);
    for (int round = 0; round < 2; ++round) {
        const int64_t before = resident_bytes();
        s2_store_resize(store, most);
        s2_store_warm(store);
        expect(comes_true([&] { return store.stats().n_resident == model.n_experts; }), "warming");
        const int64_t full = resident_bytes();
        expect(full - before > most * 9 / 10, "full, but only " + text(full - before) + " bytes more");
        s2_store_resize(store, most / 4);
        const int64_t quarter = resident_bytes();
        expect(full - quarter > most * 7 / 10, "shrunk to a quarter, but only " + text(full - quarter) + " bytes less");
        passes.run({ 1, 2 });
        s2_store_resize(store, 0);
        expect(full - resident_bytes() > most * 8 / 10, "shrunk to the least, but only " + text(full - resident_bytes()) + " bytes less");
    }
}

// Credit makes heat, drafts leave none, and heat decides what is read first after the next start.
void heat(const Place & place) {
    const Model model(place.folder, even_shapes(), true);
    const size_t n = 3 * 16;
    std::vector<float> learnt(n), drafted(n), again(n);
    {
        OpenStore store(model, { INT64_MAX / 2 });
        Team team(1);
        Passes passes(model, store, team, place.seed);
        passes.script = { { 1, 5 }, { 0, 15 }, { 7, 8 } };
        for (int i = 0; i < 4; ++i) {
            passes.run({});
            s2_store_credit(store, 1);
        }
        s2_store_get_heat(store, learnt.data());
        for (size_t i = 0; i < n; ++i) {
            const auto & experts = passes.script[i / 16];
            const bool   used    = std::find(experts.begin(), experts.end(), (int32_t) (i % 16)) != experts.end();
            expect(used == (learnt[i] > 0), "expert " + text((int64_t) i) + " has heat " + std::to_string(learnt[i]));
        }
        passes.script = { { 2 }, { 2 }, { 2 } };
        passes.run({}); // a draft
        s2_store_get_heat(store, drafted.data());
        expect(drafted == learnt, "a draft left a trace in the heat");
        passes.run({});
        s2_store_credit(store, 0);
        s2_store_get_heat(store, drafted.data());
        expect(drafted == learnt, "a pass of which nothing was accepted left a trace in the heat");
        passes.script = { { 3 }, { 3 }, { 3 } };
        passes.run({});
        s2_store_credit(store, 1);
        s2_store_get_heat(store, drafted.data());
        expect(drafted[3] > 0 && drafted[2] == 0, "credit went to a pass before the last");
    }
    OpenStore store(model, {});
    s2_store_resize(store, s2_store_bytes_all(store) / 8); // 6 slots
    s2_store_set_heat(store, learnt.data());
    s2_store_get_heat(store, again.data());
    for (size_t i = 0; i < n; ++i) {
        expect(std::abs(again[i] - learnt[i]) <= 1e-3f * learnt[i], "heat is not what it was set to");
    }
    s2_store_warm(store);
    expect(comes_true([&] { return store.stats().n_resident == 6; }), "warming fills " + text(store.stats().n_resident) + " of 6 slots");
    Team team(1);
    Passes passes(model, store, team, place.seed);
    passes.script = { { 1, 5 }, { 0, 15 }, { 7, 8 } };
    passes.run({});
    expect(store.stats().hits == 6, text(store.stats().hits) + " of the 6 hottest were warm");
}

// With everything in memory heat is gathered now and then, of accepted passes only.
void heat_of_all(const Place & place) {
    const Model model(place.folder, even_shapes(), true);
    OpenStore store(model, { INT64_MAX / 2 });
    s2_store_warm(store);
    expect(comes_true([&] { return store.stats().n_resident == model.n_experts; }), "warming");
    Team team(1);
    Passes passes(model, store, team, place.seed);
    std::vector<float> heat(3 * 16);
    for (int i = 0; i < 64; ++i) {
        passes.script = { { 2, 3 }, { 4 }, { 5 } };
        passes.run({}); // a draft
        passes.script = { { 1, 7 }, { 0 }, { 15 } };
        passes.run({});
        s2_store_credit(store, 1);
    }
    s2_store_get_heat(store, heat.data());
    for (int32_t i = 0; i < (int32_t) heat.size(); ++i) {
        const bool used = i == 1 || i == 7 || i == 16 || i == 47;
        expect(used == (heat[i] > 0), "expert " + text(i) + " has heat " + std::to_string(heat[i]));
    }
    expect(heat[1] > 2 && heat[1] < 8, "of 64 passes about four are noted, not " + std::to_string(heat[1]));
    s2_store_resize(store, s2_store_bytes_all(store) / 4); // 12 slots
    passes.run({});
    expect(store.stats().hits == store.stats().asked, "what had been used was the first to go");
}

// Of a wide pass of which few rows are accepted, an expert gets its share.
void credit_of_wide_passes(const Place & place) {
    const Model model(place.folder, even_shapes(), true);
    OpenStore store(model, { INT64_MAX / 2 });
    std::vector<float> heat(3 * 16);
    Wanted wanted[] = { { 1, 64, UINT32_MAX }, { 2, 1, UINT32_MAX }, { 3, 32, UINT32_MAX } };
    store->begin(0, wanted, 3, 64);
    s2_store_end_pass(store);
    s2_store_credit(store, 4);
    s2_store_get_heat(store, heat.data());
    expect(std::abs(heat[2] / heat[1] - 1.0f / 64) < 1e-4f && std::abs(heat[3] / heat[1] - 0.5f) < 1e-4f,
           "shares are " + std::to_string(heat[2] / heat[1]) + " and " + std::to_string(heat[3] / heat[1]));
    Wanted narrow[] = { { 5, 1, 1 }, { 6, 1, 2 }, { 7, 2, 3 } };
    store->begin(0, narrow, 3, 2);
    s2_store_end_pass(store);
    s2_store_credit(store, 1); // the first row only
    s2_store_get_heat(store, heat.data());
    expect(heat[5] > 0 && heat[5] == heat[7] && heat[6] == 0, "a rejected row got credit");
}

// What a pass waits for before its layer begins is a stall as well.
void stalls_of_beginning(const Place & place) {
    const Model model(place.folder, even_shapes(), true);
    OpenStore store(model, {}); // two slots
    s2_store_torment(store, place.seed, 200000, 0, 0);
    Wanted first[] = { { 1, 1, 1 }, { 2, 1, 1 } }, second[] = { { 3, 1, 1 }, { 4, 1, 1 } };
    store->begin(0, first, 2, 1);
    s2_store_end_pass(store); // both slots are being read to
    expect(store.stats().stall_ns == 0, "a stall of a pass that waited for nothing");
    const int64_t start = s2::now_ns();
    store->begin(0, second, 2, 1);
    const int64_t taken = s2::now_ns() - start, stall = store.stats().stall_ns;
    expect(stall > taken / 2 && stall <= taken, text(stall) + " ns of " + text(taken));
    s2_store_end_pass(store);
}

// The store goes while reads are in flight, in a pass or between two.
void destroyed_early(const Place & place) {
    Random random(place.seed);
    const Model model(place.folder, shapes(), random() % 2);
    for (int n = 0; n < 16; ++n) {
        OpenStore store(model, { INT64_MAX / 2, METHODS[n % 4] });
        s2_store_torment(store, random(), 3000, n % 4 == 3 ? 5 : 0, 0);
        Team team(THREADS);
        Passes passes(model, store, team, random());
        if (n % 3) {
            s2_store_warm(store);
        }
        PassPlan plan;
        plan.most    = 100;
        plan.stop_at = (int32_t) (random() % 6);
        if (n % 2) {
            passes.run(plan);
        }
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    }
    expect(s2::any_fault == 0, "a store that is gone left a fault");
}

// A file cut short is an error that names it, never zeros.
void cut_short(const Place & place) {
    for (const int method : METHODS) {
        const Model model(place.folder, even_shapes(), false);
        OpenStore store(model, { 0, method });
        Team team(THREADS);
        Passes passes(model, store, team, place.seed);
        passes.run({});
        expect(truncate(model.paths[1].c_str(), 1000) == 0, "truncate");
        PassPlan plan;
        plan.most = 100;
        plan.heed = false;
        plan.n_tokens = 8;
        expect(passes.run(plan).lost, "a file is cut short and nobody notices");
        std::string fault;
        expect(store.take_fault(fault) && fault.find(model.paths[1]) == 0, "the fault is: " + fault);
    }
}

void wrong_configurations(const Place & place) {
    const Model model(place.folder, even_shapes(), false);
    const char * files[] = { model.paths[0].c_str(), "/nowhere/at/all.gguf" };
    s2_store_tensor tensors[] = { { "a", 0, 4, 1000, 0, 0, 1000 }, { "b", 0, 4, 1000, 0, 4000, 1000 } };
    s2_store_config config = { files, 1, tensors, 2, 0, S2_READ_BUFFERED, 0, false };
    const auto refused = [&](const char * part) {
        char error[256] = "";
        s2_store * store = s2_store_new(&config, error, sizeof(error));
        expect(store == nullptr && strstr(error, part) != nullptr, std::string("a wrong configuration is taken; error: ") + error);
        s2_store_free(store);
    };
    config.n_files = 2;
    refused("/nowhere/at/all.gguf");
    config.n_files = 1;
    tensors[1].file = 1;
    refused("b");
    tensors[1].file = 0;
    tensors[1].n_expert = 5;
    refused("b");
    tensors[1].n_expert = 4;
    tensors[1].stride = 999;
    refused("b");
    config.n_tensors = 0;
    refused("no experts");
}

struct Case {
    const char * name;
    void (*run)(const Place &);
    bool chance; // worth another seed
};

constexpr Case CASES[] = {
    { "everything fits", everything_fits, false },
    { "hits where they fit", hits_where_they_fit, false },
    { "every size", every_size, true },
    { "torment", torment, true },
    { "failing reads", failing_reads, true },
    { "failing guesses", failing_guesses, false },
    { "late guesses", late_guesses, false },
    { "guesses wait their turn", guesses_wait_their_turn, false },
    { "guesses that fail late", guesses_that_fail_late, true },
    { "abandoned passes", abandoned_passes, true },
    { "resize storm", resize_storm, true },
    { "shrunk while busy", shrunk_while_busy, false },
    { "losing all", losing_all, true },
    { "a thief", a_thief, true },
    { "memory goes back", memory_goes_back, false },
    { "heat", heat, false },
    { "heat of all", heat_of_all, false },
    { "credit of wide passes", credit_of_wide_passes, false },
    { "stalls of beginning", stalls_of_beginning, false },
    { "destroyed early", destroyed_early, true },
    { "cut short", cut_short, false },
    { "wrong configurations", wrong_configurations, false },
};

std::atomic<const char *> now_running{ "" };
std::atomic<int64_t>      n_begun{ 0 };

// A pass that waits for ever is a failure like others, with its name.
void watch() {
    constexpr auto PATIENCE = 60s;
    std::thread([=] {
        for (int64_t seen = 0;;) {
            for (auto waited = 0ms; waited < PATIENCE && seen == n_begun; waited += 100ms) {
                std::this_thread::sleep_for(100ms);
            }
            if (seen == n_begun) {
                std::printf("WRONG: \"%s\" does not come to its end\n", now_running.load());
                std::fflush(stdout);
                _exit(3);
            }
            seen = n_begun;
        }
    }).detach();
}

} // namespace

int main(int argc, char ** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "store_check FOLDER [SEED [ROUNDS [CASE]]]\n");
        return 2;
    }
    const uint64_t    first  = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
    const int         rounds = argc > 3 ? std::atoi(argv[3]) : 1;
    const std::string only   = argc > 4 ? argv[4] : "";
    watch();
    for (int round = 0; round < rounds; ++round) {
        for (const Case & test : CASES) {
            if ((round > 0 && !test.chance) || (!only.empty() && only != test.name)) {
                continue;
            }
            const int  before = n_wrong;
            const auto start  = std::chrono::steady_clock::now();
            now_running = test.name;
            ++n_begun;
            test.run({ argv[1], first + (uint64_t) round });
            const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
            std::printf("  %-24s seed %-6llu %s %6.0f ms\n", test.name, (unsigned long long) (first + round),
                        n_wrong == before ? "right" : "WRONG", taken.count());
            std::fflush(stdout);
        }
    }
    return n_wrong ? 1 : 0;
}
