"""How far something long has come, on a line of the terminal."""

from __future__ import annotations

import sys
import time

from app.text import one_line
from engine.size import size

_EACH_S = 0.2  # between two looks


class Progress:
    """A line on the terminal with the share that is done, the speed and the time that is left."""

    def __init__(self) -> None:
        self._visible = sys.stderr is not None and sys.stderr.isatty()
        self._what, self._from, self._since, self._next = "", 0, 0.0, 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._visible and self._what:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, what: str, done: int, whole: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._from, self._since, self._next = what, done, now, now
        if self._visible and now >= self._next:
            self._next = now + _EACH_S
            print(f"\r\x1b[K{self._line(done, whole, now)}", end="", file=sys.stderr, flush=True)

    def _line(self, done: int, whole: int, now: float) -> str:
        line = f"{one_line(self._what, 60)} {100 * done // max(1, whole)}% of {size(whole)}"
        speed = (done - self._from) / (now - self._since) if now > self._since else 0.0
        if speed:
            line += f", {size(speed)}/s, {duration((whole - done) / speed)} left"
        return line


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
