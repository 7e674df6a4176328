"""Token sequences with what the teacher would say at each place, as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

TOP = 128
FRAME, USER, ASSISTANT, TEXT = range(4)  # whose token it is; FRAME: the system's turn and the names of turns


@dataclass(frozen=True)
class Shelf:
    """Documents one behind the other. Row t of the teacher's figures is what follows token t; the last
    row of a document means nothing.

    `tokens` U16 [n], `roles` U8 [n], `lengths` I32 [documents], `ids` U16 [n, 128] the likeliest tokens,
    `logp` F16 [n, 128] their log-probabilities, `tail` F16 [n] the logarithm of what all others have
    together.
    """

    tokens: npt.NDArray[np.uint16]
    roles: npt.NDArray[np.uint8]
    lengths: npt.NDArray[np.int32]
    ids: npt.NDArray[np.uint16]
    logp: npt.NDArray[np.float16]
    tail: npt.NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Where each document begins."""
        return np.cumsum(self.lengths, dtype=np.int64) - self.lengths

    def save(self, path: Path) -> None:
        part = path.with_name(path.name + ".part")
        with open(part, "wb") as file:
            np.savez(file, **vars(self))
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Shelf:
        with np.load(path) as arrays:
            return cls(**{name: arrays[name] for name in cls.__dataclass_fields__})

    @classmethod
    def joined(cls, shelves: Sequence[Shelf]) -> Shelf:
        names = cls.__dataclass_fields__
        return cls(**{name: np.concatenate([getattr(shelf, name) for shelf in shelves]) for name in names})

    def first(self, tokens: int) -> Shelf:
        """The first documents, `tokens` tokens or a little more."""
        count = int(np.searchsorted(np.cumsum(self.lengths), tokens)) + 1
        end = int(self.lengths[:count].sum())
        return Shelf(
            self.tokens[:end], self.roles[:end], self.lengths[:count],
            self.ids[:end], self.logp[:end], self.tail[:end],
        )  # fmt: skip


@dataclass(frozen=True)
class Step:
    """What one pass of training reads: exactly as many tokens as were asked for. `documents` are the
    lengths of the pieces, `weights` F32 [n] count each place's loss."""

    tokens: npt.NDArray[np.int64]
    documents: list[int]
    rows: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


class Reader:
    """Steps of `tokens` tokens from a shelf, in an order that hangs on the seed alone."""

    #: How much the loss counts at each role's tokens.
    WEIGHTS = np.array([0.05, 0.3, 1.0, 1.0], dtype=np.float32)

    def __init__(self, shelf: Shelf, tokens: int, seed: int) -> None:
        self._shelf, self._tokens, self._seed = shelf, tokens, seed
        following = np.roll(shelf.roles, -1)
        self._weights = self.WEIGHTS[following]
        self._weights[shelf.starts + shelf.lengths - 1] = 0.0

    def steps(self, skip: int = 0) -> Iterator[Step]:
        """Endless; a document that does not fit is cut, which a causal model does not notice."""
        epoch = 0
        rows: list[npt.NDArray[np.int64]] = []
        room = self._tokens
        while True:
            order = np.random.default_rng((self._seed, epoch)).permutation(len(self._shelf.lengths))
            starts = self._shelf.starts
            for document in order:
                length = min(room, int(self._shelf.lengths[document]))
                rows.append(np.arange(starts[document], starts[document] + length))
                room -= length
                if room == 0:
                    if skip:
                        skip -= 1
                    else:
                        yield self._step(rows)
                    rows, room = [], self._tokens
            epoch += 1

    def _step(self, pieces: list[npt.NDArray[np.int64]]) -> Step:
        rows = np.concatenate(pieces)
        tokens = self._shelf.tokens[rows].astype(np.int64)
        return Step(tokens, [len(piece) for piece in pieces], rows, self._weights[rows])
