"""The experts one verify pass will ask for, as far as its positions are known: the paper's S (section
4.1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.prices import Load

ABSENT, COMING, THERE = 0, 1, 2  # where an expert is: on disk, on its way, in memory


class ExpertUnion:
    """Distinct experts by layer. `where` U8 [layers, experts] says where each was when the block began; None
    where all are in memory."""

    def __init__(self, n_layers: int, n_expert: int, where: npt.NDArray[np.uint8] | None) -> None:
        self._asked = np.zeros((n_layers, n_expert), dtype=bool)
        self._where = where
        self._rows = np.arange(n_layers)[:, None]

    def news(self, chosen: npt.NDArray[np.int32]) -> Load:
        """What one more position brings that the pass does not ask for yet; `chosen` I32 [layers, k]."""
        fresh = ~self._asked[self._rows, chosen]
        if self._where is None:
            return Load(1, resident=float(np.count_nonzero(fresh)))
        places = self._where[self._rows, chosen][fresh]
        counts = np.bincount(places, minlength=3)
        return Load(1, float(counts[THERE]), float(counts[COMING]), float(counts[ABSENT]))

    def add(self, chosen: npt.NDArray[np.int32]) -> None:
        """The position goes into the pass."""
        self._asked[self._rows, chosen] = True
