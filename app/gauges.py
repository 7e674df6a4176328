"""Shares and their history as characters: they say the same with and without colours."""

from __future__ import annotations

from collections.abc import Sequence

_STEPS = "▁▂▃▄▅▆▇█"


def bar(share: float | None, width: int) -> tuple[str, str]:
    """The full and the empty part of a gauge of `width` cells; all of it empty where nothing is known."""
    full = round(min(1.0, max(0.0, share or 0.0)) * width)
    if share and full == 0:
        full = 1  # a little is not nothing
    return "█" * full, "░" * (width - full)


def spark(values: Sequence[float | None], width: int, most: float | None = None) -> str:
    """The last `width` values, each a step between 0 and `most`, by default the largest; a gap where there is
    none."""
    shown = list(values)[-width:]
    top = most or max((value for value in shown if value is not None), default=0.0) or 1.0
    steps = [
        " " if value is None else _STEPS[round(min(1.0, max(0.0, value / top)) * (len(_STEPS) - 1))]
        for value in shown
    ]
    return "".join(steps).rjust(width)
