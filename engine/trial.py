"""Whether something that may cost or save time is worth doing again: tried rarely while it loses, and left
out now and then while it gains, or nobody would know any more what it is measured by."""

from __future__ import annotations

from engine.prices import Mean

_FIRST_PAUSE, _LONGEST_PAUSE = 32, 1024  # blocks
_TRIES = 2  # in a row: the first one after a pause finds everything cold
_LEFT_OUT = 8  # blocks in a row, now and then while it gains
_FIRST_STRETCH, _LONGEST_STRETCH = 24, 192  # blocks between


class Trial:
    """Counts blocks. `due` says whether to do it in this one; `result` what it brought."""

    def __init__(self) -> None:
        self._gain = Mean()
        self._pause, self._waited, self._left = _FIRST_PAUSE, 0, _TRIES
        self._stretch, self._in_a_row = _FIRST_STRETCH, 0

    def due(self) -> bool:
        """Asked once per block."""
        if self._gain() > 0 or self._left > 0:
            return self._goes_on()
        self._waited += 1
        if self._waited < self._pause:
            return False
        self._waited, self._left = 0, _TRIES
        self._gain = Mean()  # what it brought long ago says nothing
        return True

    def _goes_on(self) -> bool:
        self._in_a_row += 1
        if self._in_a_row == self._stretch + _LEFT_OUT:
            self._stretch, self._in_a_row = min(2 * self._stretch, _LONGEST_STRETCH), 0
            return False
        return self._in_a_row <= self._stretch

    def result(self, gained_ms: float) -> None:
        """One block that did it was `gained_ms` faster than without; negative: slower."""
        self._gain.add(gained_ms)
        if self._left > 0:
            self._left -= 1
            if self._left == 0 and self._gain() <= 0:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        if self._gain() > 0:
            self._pause = _FIRST_PAUSE
