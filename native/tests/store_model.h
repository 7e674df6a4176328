#pragma once

// A model for the expert store without a model: files of random bytes, and passes over its layers as the kernels make them.

#include "s2-store-impl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace check {

using s2::Wanted;
using Random = std::mt19937_64;

inline std::atomic<int> n_wrong{ 0 };

inline void expect(bool right, const std::string & what) {
    if (!right && ++n_wrong <= 20) { // one fault often shows in thousands of places
        std::printf("WRONG: %s\n", what.c_str());
        std::fflush(stdout);
    }
}

// --- files

struct LayerShape {
    int32_t              number, n_expert;
    std::vector<int64_t> tensors; // bytes of an expert in each
};

struct TensorPlace {
    std::string name;
    int32_t     layer, file; // layer: dense
    int64_t     offset, stride, bytes;
};

// The experts of a model in two files, tensor by tensor as in a GGUF file, or expert by expert in whole pages as in a pack.
class Model {
  public:
    std::vector<LayerShape>  shapes;
    std::vector<TensorPlace> tensors;
    std::vector<std::string> paths, contents;
    int32_t                  n_experts = 0;
    int64_t                  expert_bytes = 0; // of all experts, as the files have them

    Model(const std::string & folder, std::vector<LayerShape> shapes_, bool packed) : shapes(std::move(shapes_)), contents(2) {
        for (int32_t l = 0; l < (int32_t) shapes.size(); ++l) {
            place(l, packed);
            n_experts += shapes[l].n_expert;
            for (int64_t bytes : shapes[l].tensors) {
                expert_bytes += bytes * shapes[l].n_expert;
            }
        }
        Random random(shapes.size());
        for (size_t f = 0; f < contents.size(); ++f) {
            for (size_t at = 0; at < contents[f].size(); at += sizeof(uint64_t)) {
                const uint64_t bytes = random();
                std::memcpy(&contents[f][at], &bytes, std::min(sizeof(bytes), contents[f].size() - at));
            }
            paths.push_back(folder + (packed ? "/pack" : "/gguf") + std::to_string(f));
            std::ofstream(paths[f], std::ios::binary).write(contents[f].data(), (std::streamsize) contents[f].size());
        }
    }
    Model(const Model &) = delete;
    ~Model() {
        for (const std::string & path : paths) {
            unlink(path.c_str());
        }
    }

    const char * bytes_of(int32_t tensor, int32_t expert) const {
        const TensorPlace & t = tensors[tensor];
        return contents[t.file].data() + t.offset + expert * t.stride;
    }

  private:
    static int64_t pages(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

    void place(int32_t l, bool packed) {
        const LayerShape & shape  = shapes[l];
        const int32_t      file   = l % 2;
        int64_t            record = 0, end = (int64_t) contents[file].size();
        for (int64_t bytes : shape.tensors) {
            record += pages(bytes);
        }
        end = packed ? pages(end) : end + 32 * (5 * l + 3);
        for (size_t i = 0; i < shape.tensors.size(); ++i) {
            const int64_t bytes = shape.tensors[i];
            tensors.push_back({ "blk." + std::to_string(shape.number) + "." + std::to_string(i), l, file, end, packed ? record : bytes, bytes });
            end += packed ? pages(bytes) : bytes * shape.n_expert + 32;
        }
        end += packed ? record * (shape.n_expert - 1) : 0;
        contents[file].resize(end);
    }
};

// --- a store of the model

struct StoreOptions {
    int64_t bytes  = 0;
    int32_t method = S2_READ_BUFFERED;
    bool    sync   = false;
};

class OpenStore {
  public:
    OpenStore(const Model & model, const StoreOptions & options) {
        std::vector<const char *>    files;
        std::vector<s2_store_tensor> tensors;
        for (const std::string & path : model.paths) {
            files.push_back(path.c_str());
        }
        for (const TensorPlace & t : model.tensors) {
            const LayerShape & shape = model.shapes[t.layer];
            tensors.push_back({ t.name.c_str(), shape.number, shape.n_expert, t.bytes, t.file, t.offset, t.stride });
        }
        const s2_store_config config = { files.data(), (int32_t) files.size(), tensors.data(), (int32_t) tensors.size(), options.bytes,
                                         options.method, 0, options.sync };
        char error[256] = "";
        handle = s2_store_new(&config, error, sizeof(error));
        if (handle == nullptr) {
            std::printf("WRONG: no store: %s\n", error);
            _exit(1);
        }
        s2_store_attach(handle);
        inner = s2::attached_store();
    }
    OpenStore(const OpenStore &) = delete;
    ~OpenStore() { s2_store_free(handle); }

    operator s2_store *() const { return handle; }
    s2::Store * operator->() const { return inner; }

    s2_store_stats stats() const {
        s2_store_stats stats;
        s2_store_get_stats(handle, &stats);
        return stats;
    }
    bool take_fault(std::string & text) const {
        char buffer[512] = "";
        const bool taken = s2_store_take_fault(handle, buffer, sizeof(buffer));
        text = buffer;
        return taken;
    }

  private:
    s2_store *  handle;
    s2::Store * inner;
};

// --- threads that share a product

class Team {
  public:
    explicit Team(int32_t n) {
        for (int32_t i = 1; i < n; ++i) {
            threads.emplace_back([this] { work(); });
        }
    }
    ~Team() {
        {
            const std::lock_guard<std::mutex> lock(mutex);
            stopped = true;
        }
        changed.notify_all();
        for (std::thread & thread : threads) {
            thread.join();
        }
    }

    int32_t size() const { return (int32_t) threads.size() + 1; }

    // `job` runs once in each thread, this one among them; returns when all are through.
    void run(const std::function<void()> & job_) {
        std::unique_lock<std::mutex> lock(mutex);
        job     = &job_;
        n_left  = (int32_t) threads.size();
        ++round;
        changed.notify_all();
        lock.unlock();
        job_();
        lock.lock();
        changed.wait(lock, [&] { return n_left == 0; });
    }

  private:
    void work() {
        std::unique_lock<std::mutex> lock(mutex);
        for (int64_t seen = 0;;) {
            changed.wait(lock, [&] { return stopped || round != seen; });
            if (stopped) {
                return;
            }
            seen = round;
            const auto * mine = job;
            lock.unlock();
            (*mine)();
            lock.lock();
            if (--n_left == 0) {
                changed.notify_all();
            }
        }
    }

    std::vector<std::thread>      threads;
    std::mutex                    mutex;
    std::condition_variable       changed;
    const std::function<void()> * job = nullptr;
    int64_t                       round = 0;
    int32_t                       n_left = 0;
    bool                          stopped = false;
};

// --- passes

struct PassPlan {
    int32_t n_tokens = 1;
    int32_t most     = 4;       // experts of a layer
    int32_t guesses  = 0;       // of the next layer, right and wrong ones
    int32_t stop_at  = INT32_MAX; // the pass is abandoned before this tensor
    bool    heed     = true;    // stop at a fault, as decode does; else go on without the weights
    int32_t linger_us = 0;      // between getting an expert and looking at its bytes
    std::function<void()> in_last = nullptr; // called while the last tensor is multiplied
};

struct PassResult {
    int64_t asked = 0;
    bool    lost  = false; // an expert was not to be had
};

class Passes {
  public:
    Passes(const Model & model, OpenStore & store, Team & team, uint64_t seed) : model(model), store(store), team(team), random(seed) {}

    // A pass to its end, s2_store_end_pass included.
    PassResult run(const PassPlan & plan) {
        PassResult result;
        std::vector<std::vector<Wanted>> wanted;
        for (const LayerShape & shape : model.shapes) {
            wanted.push_back(choose(shape.n_expert, plan));
        }
        int32_t counted = -1;
        for (int32_t t = 0; t < (int32_t) model.tensors.size() && t < plan.stop_at; ++t) {
            if (plan.heed && s2_store_any_fault()) {
                result.lost = true;
                break;
            }
            const int32_t layer = model.tensors[t].layer;
            const bool    first = layer != counted;
            counted = layer;
            result.asked += first ? (int64_t) wanted[layer].size() : 0;
            const bool ahead = first && plan.guesses > 0 && layer + 1 < (int32_t) wanted.size() && store->wants_guesses();
            product(t, wanted[layer], plan, ahead ? guess(layer + 1, wanted[layer + 1], plan.guesses) : std::vector<int32_t>(), result);
        }
        s2_store_end_pass(store);
        asked = std::move(wanted);
        return result;
    }

    // What the last pass asked for, by layer.
    std::vector<std::vector<Wanted>> asked;

    // Which experts the next passes ask for, by layer, instead of random ones; empty: random again.
    std::vector<std::vector<int32_t>> script;

  private:
    std::vector<Wanted> choose(int32_t n_expert, const PassPlan & plan) {
        const size_t layer = asked_layers++ % model.shapes.size();
        std::vector<int32_t> experts;
        if (!script.empty()) {
            experts = script[layer];
        } else {
            experts.resize(n_expert);
            for (int32_t i = 0; i < n_expert; ++i) {
                experts[i] = i;
            }
            std::shuffle(experts.begin(), experts.end(), random);
            experts.resize(1 + random() % std::min(plan.most, n_expert));
        }
        std::vector<Wanted> wanted;
        for (int32_t expert : experts) {
            const uint32_t all  = plan.n_tokens >= 32 ? UINT32_MAX : (1u << plan.n_tokens) - 1;
            uint32_t       rows = plan.n_tokens > 32 ? all : (uint32_t) random() & all;
            rows = rows == 0 ? 1 : rows;
            wanted.push_back({ expert, std::min(plan.n_tokens, __builtin_popcount(rows)), rows });
        }
        return wanted;
    }

    std::vector<int32_t> guess(int32_t layer, const std::vector<Wanted> & wanted, int32_t n) {
        std::vector<int32_t> guesses;
        for (int32_t i = 0; i < n; ++i) {
            const bool right = random() % 4 != 0;
            guesses.push_back(right ? wanted[random() % wanted.size()].expert : (int32_t) (random() % model.shapes[layer].n_expert));
        }
        return guesses;
    }

    // (group, chunk) items in order, each to the thread that comes first; who ends a group's last chunk says so.
    void product(int32_t t, std::vector<Wanted> wanted, const PassPlan & plan, const std::vector<int32_t> & guesses, PassResult & result) {
        constexpr int32_t CHUNKS = 3;
        const int32_t     n = (int32_t) wanted.size();
        const bool    hopeless = s2_store_any_fault();
        begin(t, wanted, plan);
        std::vector<std::atomic<int32_t>> left(n);
        for (auto & chunks : left) {
            chunks = CHUNKS;
        }
        std::atomic<int32_t> next{ 0 };
        std::atomic<bool>    lost{ false };
        const int64_t        bytes = model.tensors[t].bytes;
        const int32_t        layer = model.tensors[t].layer;
        const auto           first = std::this_thread::get_id();
        team.run([&] {
            if (!guesses.empty() && std::this_thread::get_id() == first) {
                store->look_ahead(layer, &wanted[n - 1].expert, 1, s2::now_ns()); // too late, and harmless
                store->look_ahead(layer + 1, guesses.data(), (int32_t) guesses.size(), s2::now_ns());
            }
            if (plan.in_last && t + 1 == (int32_t) model.tensors.size() && std::this_thread::get_id() == first) {
                plan.in_last();
            }
            for (int32_t i = next++; i < n * CHUNKS; i = next++) {
                const int32_t g = i / CHUNKS, c = i % CHUNKS, expert = wanted[g].expert;
                const char *  weights = store->wait(t, expert, team.size());
                if (weights == nullptr) {
                    std::string fault;
                    expect(s2_store_any_fault(), "an expert is missing and no fault says why");
                    expect(!store.take_fault(fault), "a fault was taken and the pass goes on");
                    lost = true;
                } else {
                    expect(!hopeless, "after a fault a product gets experts that nothing holds");
                    if (plan.linger_us > 0) {
                        std::this_thread::sleep_for(std::chrono::microseconds(plan.linger_us));
                    }
                    const int64_t from = bytes * c / CHUNKS, to = bytes * (c + 1) / CHUNKS;
                    expect(std::memcmp(weights + from, model.bytes_of(t, expert) + from, to - from) == 0,
                           model.tensors[t].name + " expert " + std::to_string(expert) + ": other bytes than in the file");
                }
                if (--left[g] == 0) {
                    store->done(t, expert);
                }
            }
        });
        result.lost |= lost;
    }

    // begin() may sort what it is given, and nothing else.
    void begin(int32_t t, std::vector<Wanted> & wanted, const PassPlan & plan) {
        std::vector<bool> there(model.shapes[model.tensors[t].layer].n_expert);
        for (const Wanted & w : wanted) {
            there[w.expert] = true;
        }
        store->begin(t, wanted.data(), (int32_t) wanted.size(), plan.n_tokens);
        for (const Wanted & w : wanted) {
            expect(there[w.expert], "begin() asks for another expert, or for one twice");
            there[w.expert] = false;
        }
    }

    const Model & model;
    OpenStore &   store;
    Team &        team;
    Random        random;
    size_t        asked_layers = 0;
};

} // namespace check
