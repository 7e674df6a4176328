"""How an answer goes along: what happened between one look at its counters and the next."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from engine.events import StoreFigures, Timings

if TYPE_CHECKING:
    from collections.abc import Sequence

_KEPT = 120


class Trend:
    """`speed` in tokens/s, `accepted` and `hit` as shares, `read` in MiB per token, `memory` as a share of
    the budget. A look without a token adds nothing but the memory; a value that does not exist is None.
    """

    def __init__(self) -> None:
        self.speed: deque[float | None] = deque(maxlen=_KEPT)
        self.accepted: deque[float | None] = deque(maxlen=_KEPT)
        self.hit: deque[float | None] = deque(maxlen=_KEPT)
        self.read: deque[float | None] = deque(maxlen=_KEPT)
        self.memory: deque[float | None] = deque(maxlen=_KEPT)
        self._before = Timings()

    def forget(self) -> None:
        """What was seen of answers; the memory is the engine's, whatever it writes."""
        for values in (self.speed, self.accepted, self.hit, self.read):
            values.clear()
        self._before = Timings()

    def take(self, timings: Timings | None) -> None:
        """The counters of the answer that is being written, None where none is."""
        if timings is None:
            self._before = Timings()
            return
        before = self._before if timings.predicted_n >= self._before.predicted_n else Timings()
        tokens, milliseconds = (
            timings.predicted_n - before.predicted_n,
            timings.predicted_ms - before.predicted_ms,
        )
        if tokens <= 0 or milliseconds <= 0:
            return
        self._before = timings
        self.speed.append(1e3 * tokens / milliseconds)
        self.accepted.append(
            _share(timings.draft_n_accepted - before.draft_n_accepted, timings.draft_n - before.draft_n)
        )
        store, old = timings.store, before.store or StoreFigures()
        self.hit.append(_share(store.hits - old.hits, store.asked - old.asked) if store else None)
        self.read.append((store.bytes_read - old.bytes_read) / tokens / (1 << 20) if store else None)


def last(values: Sequence[float | None]) -> float | None:
    return values[-1] if values else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole > 0 else None
