"""Charts as SVG: bars, and points or lines. Colours of Okabe and Ito, which all eyes tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 60, 56  # margins of the plot
_TICKS = 5

Point = tuple[float, float]


def bars(title: str, values: Mapping[str, float]) -> str:
    """One bar for each of `values`, from 0."""
    y = _Axis([0.0, *values.values()], _HEIGHT - _BOTTOM, _TOP)
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(values))
    parts = _frame(title, "", "", y)
    for i, (name, value) in enumerate(values.items()):
        middle, top = _LEFT + (i + 0.5) * step, y.at(value)
        parts.append(
            f'<rect x="{middle - step / 3:.1f}" y="{top:.1f}" width="{step / 1.5:.1f}" '
            f'height="{y.at(0) - top:.1f}" fill="{_COLOURS[0]}"/>'
        )
        parts.append(_text(middle, top - 6, f"{value:.2f}", "middle"))
        parts.append(_text(middle, _HEIGHT - _BOTTOM + 18, name, "middle", small=True))
    return _document(parts)


def points(
    title: str, x_label: str, y_label: str, series: Mapping[str, Sequence[Point]], *, joined: bool
) -> str:
    """The points of each of `series`, `joined` by lines or not, in a colour of its own."""
    every = [point for row in series.values() for point in row]
    x = _Axis([point[0] for point in every], _LEFT + 12, _WIDTH - _RIGHT - 12)
    y = _Axis([0.0, *(point[1] for point in every)], _HEIGHT - _BOTTOM, _TOP)
    parts = _frame(title, x_label, y_label, y)
    parts += [_text(x.at(tick), _HEIGHT - _BOTTOM + 18, f"{tick:g}", "middle") for tick in x.ticks]
    for i, (name, row) in enumerate(series.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        places = [(x.at(a), y.at(b)) for a, b in sorted(row)]
        if joined:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
            parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4" fill="{colour}"/>' for a, b in places]
        at = _LEFT + i * (_WIDTH - _LEFT - _RIGHT) / len(series)
        parts.append(f'<circle cx="{at:.1f}" cy="{_TOP - 22}" r="4" fill="{colour}"/>')
        parts.append(_text(at + 9, _TOP - 18, name, "start"))
    return _document(parts)


class _Axis:
    """Places for `values` between two edges of the plot, in pixels; its ticks are round numbers."""

    def __init__(self, values: Sequence[float], low_edge: float, high_edge: float) -> None:
        low, high = min(values), max(values)
        spread = (high - low) or abs(high) or 1.0
        raw = spread / _TICKS
        power = 10.0 ** math.floor(math.log10(raw))
        step: float = next(power * times for times in (1, 2, 5, 10) if power * times >= raw * 0.999)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        self.ticks = [round(n * step, 10) for n in range(first, max(last, first + 1) + 1)]
        self._low, self._span = self.ticks[0], self.ticks[-1] - self.ticks[0]
        self._from, self._length = low_edge, high_edge - low_edge

    def at(self, value: float) -> float:
        return self._from + (value - self._low) / self._span * self._length


def _frame(title: str, x_label: str, y_label: str, y: _Axis) -> list[str]:
    parts = [_text(_LEFT, 20, title, "start")]
    for tick in y.ticks:
        at = y.at(tick)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="#ccc"/>')
        parts.append(_text(_LEFT - 8, at + 4, f"{tick:g}", "end"))
    parts.append(_text((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 14, x_label, "middle"))
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(f'<g transform="rotate(-90 14 {middle})">{_text(14, middle, y_label, "middle")}</g>')
    return parts


def _text(x: float, y: float, text: str, anchor: str, *, small: bool = False) -> str:
    size = ' font-size="11"' if small else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{size}>{escape(text)}</text>'


def _document(parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" font-family="sans-serif" font-size="13">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *parts, "</svg>"]) + "\n"
