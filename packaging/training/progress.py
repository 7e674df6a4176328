"""Lines that say how far a stage has come, how fast, and when it will be done."""

from __future__ import annotations

import sys
from time import monotonic


class Progress:
    """Counts `total` units; what an earlier run did is not counted as this one's speed."""

    def __init__(self, stage: str, total: float, unit: str = "tok", done: float = 0.0) -> None:
        self._stage, self._total, self._unit = stage, total, unit
        self._done = self._before = done
        self._started, self._said = monotonic(), 0.0

    @property
    def rate(self) -> float:
        """Units per second of this run."""
        return (self._done - self._before) / max(monotonic() - self._started, 1e-9)

    def add(self, units: float, note: str = "", *, always: bool = False) -> None:
        self._done += units
        if always or monotonic() - self._said > 5.0:
            self._said = monotonic()
            left = (self._total - self._done) / max(self.rate, 1e-9)
            share = 100 * self._done / self._total
            line = f"{self._stage:<13} {share:5.1f} % {self.rate:7,.1f} {self._unit}/s"
            say(f"{line} {_clock(left)} left  {note}")

    def end(self, note: str = "") -> None:
        took = monotonic() - self._started
        say(f"{self._stage:<13} done: {self._done - self._before:,.0f} {self._unit} in {_clock(took)}, "
            f"{self.rate:,.0f} {self._unit}/s  {note}")  # fmt: skip


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    seconds = max(0, int(seconds))
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
