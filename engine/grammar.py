"""What an answer may be: a llama.cpp grammar, and how far the answer has come in it."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt

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

    def forbid(self, tokens: npt.NDArray[np.bool_]) -> None:
        """Just filled: `tokens` BOOL [n_vocab] are out of the question."""
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

    Raises BadRequest where llama.cpp cannot read `rules`.
    """

    def __init__(self, rules: str, vocab: Vocab) -> None:
        self._vocab = vocab
        self._one = Candidates(1)
        log.clear()
        self._sampler: Any = llama().llama_sampler_init_grammar(vocab.handle, rules.encode(), b"root")
        if not self._sampler:
            raise BadRequest(
                f"the wanted format is too complex, or has no end: {log.last() or 'llama.cpp refuses it'}",
                hint="a simpler schema",
            )

    def allows(self, token: int) -> bool:
        if self._vocab.silent[token]:
            return False
        self._one.only(token)
        self._one.apply(self._sampler)
        return self._one.first_is_possible

    def restrict(self, candidates: Candidates) -> None:
        """Leaves those of all tokens that may come next."""
        candidates.forbid(self._vocab.silent)
        candidates.apply(self._sampler)

    def accept(self, token: int) -> None:
        """Native code ends the process where the token does not fit, so it is asked first."""
        if not self.allows(token):
            raise NativeError("no token is left that the wanted format allows")
        llama().llama_sampler_accept(self._sampler, token)

    def copy_from(self, other: Grammar) -> None:
        """Takes over how far another answer to the same rules has come."""
        llama().llama_sampler_copy(other._sampler, self._sampler)

    def close(self) -> None:
        if self._sampler:
            llama().llama_sampler_free(self._sampler)
            self._sampler = None
