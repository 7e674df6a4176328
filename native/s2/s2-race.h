#pragma once

#include "llama.h"

#include <stdint.h>

// A draw by Gumbel's trick: every token gets a number that depends on seed, position and token alone, and the token with the
// largest logit plus number wins, which it does with its probability. Near-equal distributions so draw equal tokens whatever
// else they disagree in, where one number over a cumulative sum draws others as soon as tokens before it change places: drafts
// are accepted more often. The best among some tokens is the best of all where that is one of them.
//
// The position grows with each token that is accepted; drawing again at the same one uses the same numbers.
llama_sampler * s2_race_init(uint32_t seed);
