"""What an answer may be: a llama.cpp grammar, and how far the answer has come in it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.channels import Channels, Place
from engine.errors import BadRequest, NativeError
from engine.native import llama, log
from engine.vocab import Vocab

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """Tokens with their logits, as llama.cpp's samplers read and thin them out."""

    def __init__(self, n_vocab: int) -> None:
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._rows = np.empty(n_vocab, dtype=_CANDIDATE)
        bindings = llama()
        data = self._rows.ctypes.data_as(bindings.llama_token_data_p)
        self._array = bindings.llama_token_data_array(data, n_vocab, -1, False)

    def fill(self, logits: npt.NDArray[np.float32]) -> None:
        """All tokens with the `logits` F32 [n_vocab] of one row."""
        self._rows["id"], self._rows["logit"], self._rows["p"] = self._ids, logits, 0.0
        self._array.size, self._array.selected, self._array.sorted = len(self._rows), -1, False

    def only(self, token: int) -> None:
        self._rows[0] = (token, 0.0, 0.0)
        self._array.size, self._array.selected, self._array.sorted = 1, -1, False

    def forbid(self, tokens: npt.NDArray[np.bool_] | list[int]) -> None:
        """Just filled: `tokens`, as BOOL [n_vocab] or one by one, are out of the question."""
        self._rows["logit"][tokens] = -np.inf

    def apply(self, sampler: Any) -> None:
        llama().llama_sampler_apply(sampler, ctypes.byref(self._array))

    @property
    def selected(self) -> int:
        """The token that the last sampler has drawn."""
        return int(self._rows["id"][self._array.selected])

    @property
    def first_is_possible(self) -> bool:
        return bool(np.isfinite(self._rows["logit"][0]))


class Grammar:
    """Rules for the whole answer, of which control tokens are never part, ends excepted.

    `channels`: the dialect the answer is written in; only its headers may have its marks. Raises BadRequest
    where llama.cpp cannot read `rules`.
    """

    def __init__(self, rules: str, vocab: Vocab, channels: Channels | None = None) -> None:
        self._vocab = vocab
        self._place = Place(channels) if channels else None
        self._one = Candidates(1)
        log.clear()
        self._sampler: Any = llama().llama_sampler_init_grammar(vocab.handle, rules.encode(), b"root")
        if not self._sampler:
            raise BadRequest(
                f"the wanted format is too complex, or has no end: {log.last() or 'llama.cpp refuses it'}",
                hint="a simpler schema",
            )

    def allows(self, token: int) -> bool:
        if self._vocab.silent[token] or (self._place is not None and token in self._place.forbidden):
            return False
        self._one.only(token)
        self._one.apply(self._sampler)
        return self._one.first_is_possible

    def restrict(self, candidates: Candidates) -> None:
        """Leaves those of all tokens that may come next."""
        candidates.forbid(self._vocab.silent)
        if self._place is not None:
            candidates.forbid(list(self._place.forbidden))
        candidates.apply(self._sampler)

    def accept(self, token: int) -> None:
        """Native code ends the process where the token does not fit, so it is asked first."""
        if not self.allows(token):
            raise NativeError("no token is left that the wanted format allows")
        llama().llama_sampler_accept(self._sampler, token)
        if self._place is not None and not self._vocab.is_end(token):
            self._place.step(token)

    def copy_from(self, other: Grammar) -> None:
        """Takes over how far another answer to the same rules has come."""
        llama().llama_sampler_copy(other._sampler, self._sampler)
        if self._place is not None and other._place is not None:
            self._place.copy_from(other._place)

    def close(self) -> None:
        if self._sampler:
            llama().llama_sampler_free(self._sampler)
            self._sampler = None
