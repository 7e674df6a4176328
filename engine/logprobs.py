"""How likely the model itself found a token, before any sampler had its say."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engine.events import TokenLogprob
from engine.native import llama
from engine.vocab import Vocab

MOST_TOP = 20  # OpenAI's limit


def logits_of(context: Any, row: int, n_vocab: int) -> npt.NDArray[np.float32]:
    """A view of output row `row` of the last decode call, F32 [n_vocab]; good until the next call."""
    pointer = llama().llama_get_logits_ith(context, row)
    return np.ctypeslib.as_array(pointer, shape=(n_vocab,))


def logprob_of(logits: npt.NDArray[np.float32], token: int, n_top: int, vocab: Vocab) -> TokenLogprob:
    """The logarithm of `token`'s probability, and the `n_top` likeliest tokens with theirs."""
    largest = logits.max()
    total = float(largest) + float(np.log(np.exp((logits - largest).astype(np.float64)).sum()))

    def entry(number: int) -> tuple[bytes, float]:
        name = vocab.piece(number) or vocab.name(number).encode()
        return name, float(logits[number]) - total

    top: list[int] = []
    if n_top:
        found = np.argpartition(logits, -n_top)[-n_top:]
        top = [int(number) for number in found[np.lexsort((found, -logits[found]))]]
    return TokenLogprob(*entry(token), top=tuple(entry(number) for number in top))
