#include "s2.h"

#include <cmath>

namespace {

struct race {
    uint32_t seed;
    uint64_t position;
};

race & of(const llama_sampler * smpl) {
    return *static_cast<race *>(smpl->ctx);
}

// The finaliser of splitmix64: every bit of the result depends on every bit of `x`.
uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

// Standard Gumbel. The half keeps 53 random bits off 0 and 1, whose logarithms are of no use.
double gumbel(uint64_t key, llama_token token) {
    const double uniform = ((double) (mix(key ^ (uint32_t) token) >> 11) + 0.5) * 0x1p-53;
    return -std::log(-std::log(uniform));
}

const char * name(const llama_sampler *) {
    return "race";
}

void accept(llama_sampler * smpl, llama_token) {
    of(smpl).position++;
}

void apply(llama_sampler * smpl, llama_token_data_array * cur_p) {
    const race &   self = of(smpl);
    const uint64_t key  = mix(mix(self.seed) ^ self.position);
    double         most = -INFINITY;
    cur_p->selected = cur_p->size == 0 ? -1 : 0;
    for (size_t i = 0; i < cur_p->size; ++i) {
        const llama_token_data & candidate = cur_p->data[i];
        if (candidate.logit == -INFINITY) { // forbidden
            continue;
        }
        const double score = candidate.logit + gumbel(key, candidate.id);
        if (score > most) {
            most            = score;
            cur_p->selected = (int64_t) i;
        }
    }
}

void reset(llama_sampler * smpl) {
    of(smpl).position = 0;
}

void copy_state(const llama_sampler * src, llama_sampler * dst) {
    of(dst) = of(src);
}

void free_race(llama_sampler * smpl) {
    delete static_cast<race *>(smpl->ctx);
}

llama_sampler * clone(const llama_sampler * smpl);

llama_sampler_i interface = {
    /* .name              = */ name,
    /* .accept            = */ accept,
    /* .apply             = */ apply,
    /* .reset             = */ reset,
    /* .clone             = */ clone,
    /* .free              = */ free_race,
    /* .backend_init      = */ nullptr,
    /* .backend_accept    = */ nullptr,
    /* .backend_apply     = */ nullptr,
    /* .backend_set_input = */ nullptr,
    /* .backend_reset     = */ nullptr,
    /* .copy_state        = */ copy_state,
};

llama_sampler * clone(const llama_sampler * smpl) {
    return llama_sampler_init(&interface, new race(of(smpl)));
}

} // namespace

llama_sampler * s2_sampler_init_race(uint32_t seed) {
    return llama_sampler_init(&interface, new race{ seed, 0 });
}
