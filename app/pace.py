"""How often a growing answer is drawn, so that drawing never costs more than its share of a core."""

from __future__ import annotations

#: Of one core's time, what drawing may take while the decode threads want all of it.
_SHARE = 0.015
_FASTEST_S = 0.2
_SLOWEST_S = 1.0


class Pace:
    """The interval between two updates follows what an update has cost of late."""

    def __init__(self) -> None:
        self._cost_s = 0.0

    @property
    def interval_s(self) -> float:
        return min(max(_FASTEST_S, self._cost_s / _SHARE), _SLOWEST_S)

    def measured(self, cost_s: float) -> None:
        """`cost_s`: CPU seconds of one update. A single slow one counts for a quarter."""
        self._cost_s = cost_s if not self._cost_s else 0.75 * self._cost_s + 0.25 * cost_s
