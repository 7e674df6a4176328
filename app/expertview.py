"""A map of a model's experts: each one where there is room, else how many of a layer are what."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING

from textual.content import Content

if TYPE_CHECKING:
    from engine.events import ExpertMap

#: What an expert is, the strongest last: where several share a place, the strongest is shown.
ABSENT, THERE, COMING, USED, MISSED = range(5)
SIGNS = "·░▒█▓"  # tell them apart without colours, too
WORDS = ("disk", "in memory", "reading", "used", "missed")
_STYLES = ("$foreground-disabled", "$foreground-muted", "$text-warning", "$text-success", "$text-error")

_BARS = " ▁▂▃▄▅▆▇█"
_BAR_LABEL = 10
_MOST_LAYERS, _MOST_EXPERTS = 2, 4  # that share a place of the map

_ROWS: tuple[tuple[str, int, Callable[[int], bool]], ...] = (
    ("used", USED, lambda state: state >= USED),
    ("in memory", THERE, lambda state: state in (THERE, USED)),
    ("reading", COMING, lambda state: state == COMING),
    ("missed", MISSED, lambda state: state == MISSED),
)


def expert_lines(experts: ExpertMap, width: int, height: int) -> list[Content]:
    """At most `height` lines of at most `width` cells."""
    rows = states(experts)
    lines = _map(rows, width, height - 1)
    if lines:
        return [*lines, _legend(rows).truncate(width, ellipsis=True)]
    return _bars(rows, width, whole=experts.there is None)[: max(0, height)]


def states(experts: ExpertMap) -> list[list[int]]:
    """By layer, what each expert is. One that was used and not in memory before the pass was missed."""
    n = experts.layers * experts.each
    used = _bits(experts.used, n)
    there = "1" * n if experts.there is None else _bits(experts.there, n)
    coming = "0" * n if experts.coming is None else _bits(experts.coming, n)
    flat = [_state(*bits) for bits in zip(used, there, coming, strict=True)]
    return [flat[at : at + experts.each] for at in range(0, n, experts.each)]


def _bits(value: bytes, n: int) -> str:
    return f"{int.from_bytes(value, 'big'):0{8 * len(value)}b}"[:n]


def _state(used: str, there: str, coming: str) -> int:
    if used == "1":
        return USED if there == "1" else MISSED
    return COMING if coming == "1" else THERE if there == "1" else ABSENT


def _map(rows: list[list[int]], width: int, height: int) -> list[Content]:
    """A line per layer, a sign per expert; nothing where too many would share a place."""
    if height < 1 or width < 1:
        return []
    layers, each = -(-len(rows) // height), -(-len(rows[0]) // width)
    if layers > _MOST_LAYERS or each > _MOST_EXPERTS:
        return []
    lines = []
    for at in range(0, len(rows), layers):
        group = [max(column) for column in zip(*rows[at : at + layers], strict=True)]
        places = [max(group[e : e + each]) for e in range(0, len(group), each)]
        lines.append(Content.assemble(*((SIGNS[state], _STYLES[state]) for state in places)).simplify())
    return lines


def _legend(rows: list[list[int]]) -> Content:
    found = {state for row in rows for state in row}
    return Content(" ").join(
        Content.styled(SIGNS[state], _STYLES[state]) + f" {WORDS[state]}"
        for state in sorted(found, reverse=True)
    )


def _bars(rows: list[list[int]], width: int, *, whole: bool) -> list[Content]:
    """A column per layer, as high as the share of its experts for which the word in front is true."""
    room = max(1, width - _BAR_LABEL)
    together = -(-len(rows) // room)
    groups = [list(chain(*rows[at : at + together])) for at in range(0, len(rows), together)]
    lines = []
    for word, style, holds in _ROWS[:1] if whole else _ROWS:
        shares = [sum(map(holds, group)) / len(group) for group in groups]
        bars = "".join(_BARS[0 if not share else max(1, round(share * (len(_BARS) - 1)))] for share in shares)
        line = Content.styled(f"{word:<{_BAR_LABEL}}", "$foreground-muted") + Content.styled(
            bars, _STYLES[style]
        )
        share = f" {100 * sum(shares) / len(shares):.0f}%" + (", all experts in memory" if whole else "")
        lines.append(line + (share if line.cell_length + len(share) <= width else ""))
    return lines
