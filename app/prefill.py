"""How far the engine has read a prompt, when it will be done, and what it had read before."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.messages import Progress

_WORTH_SAYING_S = 2.0
_SURE_AFTER_MS = 200.0  # a speed measured over less says nothing


class Prefill:
    """Takes the engine's progress reports of one request."""

    def __init__(self) -> None:
        self._first: Progress | None = None
        self._last: Progress | None = None

    def take(self, progress: Progress | None) -> None:
        if progress is not None:
            self._first = self._first or progress
            self._last = progress

    @property
    def seconds_left(self) -> float | None:
        """By the speed so far; None while that is not known."""
        first, last = self._first, self._last
        if first is None or last is None:
            return None
        done, took_ms = last.processed - first.processed, last.time_ms - first.time_ms
        if done <= 0 or took_ms < _SURE_AFTER_MS:
            return None
        return (last.total - last.processed) * took_ms / done / 1e3

    @property
    def words(self) -> str:
        """ "" before the first report."""
        last = self._last
        if last is None:
            return ""
        words = f"reading the prompt {100 * last.processed // max(1, last.total)}%"
        left = self.seconds_left
        if left is not None and left >= _WORTH_SAYING_S:
            words += f", {_time(left)} left"
        return words + (f", {last.cache} of {last.total} tokens reused" if last.cache else "")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
