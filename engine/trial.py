"""Whether something that may cost or save time is worth doing again: tried rarely while it loses, and left
out now and then while it gains, or nobody would know any more what it is measured by."""

from __future__ import annotations

from engine.prices import Mean

_FIRST_PAUSE, _LONGEST_PAUSE = 32, 1024  # blocks
_TRIES = 2  # in a row: the first one after a pause finds everything cold
_LEFT_OUT_EACH = 48  # blocks


class Trial:
    """Counts blocks. `due` says whether to do it in this one; `result` what it brought."""

    def __init__(self) -> None:
        self._gain = Mean()
        self._pause, self._waited, self._left = _FIRST_PAUSE, 0, _TRIES
        self._in_a_row = 0

    def due(self) -> bool:
        """Asked once per block."""
        if self._gain() > 0 or self._left > 0:
            self._in_a_row = (self._in_a_row + 1) % _LEFT_OUT_EACH
            return self._in_a_row > 0
        self._waited += 1
        if self._waited < self._pause:
            return False
        self._waited, self._left = 0, _TRIES
        self._gain = Mean()  # what it brought long ago says nothing
        return True

    def result(self, gained_ms: float) -> None:
        """One block that did it was `gained_ms` faster than without; negative: slower."""
        self._gain.add(gained_ms)
        if self._left > 0:
            self._left -= 1
            if self._left == 0 and self._gain() <= 0:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if self._gain() > 0:
            self._pause = _FIRST_PAUSE
