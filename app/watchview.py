"""What the panel of the speculation says: figures, the latest blocks, and the experts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from textual.content import Content

from app.blockview import LEGEND, block_lines
from app.expertview import expert_lines
from app.labels import acceptance, per_pass
from app.looks import Looks

if TYPE_CHECKING:
    from app.labels import ModeLabel
    from engine.events import Timings

_DRAFTERS = {"self": "self-draft", "ngram": "ngram", "": "none"}
_GAP = " · "
_LEAST_BLOCKS = 13  # lines, with what stands around them, before the experts get more than half
_NOTHING = "Blocks show here while an answer is written."


@dataclass(frozen=True, slots=True)
class Watched:
    """An answer as it is watched. `plain_per_second`: tokens per second of `ar` for the same question with
    the same model, None where nobody has asked for that."""

    looks: Looks = field(default_factory=Looks)
    mode: ModeLabel | None = None
    timings: Timings | None = None
    plain_per_second: float | None = None


def watch_lines(watched: Watched, width: int, height: int) -> list[Content]:
    """`height` lines of `width` cells at most: blocks get what figures and experts leave."""
    if width < 1 or height < 1:
        return []
    looks = watched.looks
    head = _wrapped(figures(watched), width)[: max(1, height - 1)]
    room = height - len(head)
    experts = []
    if looks.experts is not None and room > 2:
        experts = expert_lines(looks.experts, width, max(room - _LEAST_BLOCKS, room // 2))
    spaced = room - len(experts) >= 6
    blocks = block_lines(looks.blocks, width, max(0, room - len(experts) - (3 if spaced else 0)))
    if not looks.blocks:
        blocks = [Content.styled(_NOTHING, "$foreground-muted").truncate(width, ellipsis=True)][:room]
    if not spaced:
        return [*head, *blocks, *experts]
    legend = Content.styled(LEGEND, "$foreground-muted").truncate(width, ellipsis=True)
    gap = [Content("")]
    return [*head, legend, *gap, *blocks, *(gap if experts else []), *experts]


def figures(watched: Watched) -> list[str]:
    """Mode, where drafts came from, how long they were, what became of them, what that brought."""
    looks, timings = watched.looks, watched.timings
    parts = [str(watched.mode or "")]
    if timings is None or not timings.verify_n:
        return [part for part in parts if part]
    gain = _gain(watched, timings)
    if not timings.draft_n:
        return [*parts, "nothing drafted", f"{per_pass(timings)} tokens/pass", *gain]
    counts = looks.sources
    drafted = [name for name in ("self", "ngram") if counts[name]]
    if len(counts) == 1 and drafted:
        parts.append(_DRAFTERS[drafted[0]])
    elif counts:
        names = [name for name in ("self", "ngram", "") if counts[name]]
        parts.append(", ".join(f"{_DRAFTERS[name]} {counts[name]}" for name in names) + " of the last blocks")
    if looks.length is not None:
        parts.append(f"{looks.length:.1f} long")
    parts += [f"acc {acceptance(timings)}", f"{per_pass(timings)} tokens/pass"]
    return [*parts, *gain]


def _gain(watched: Watched, timings: Timings) -> list[str]:
    """Speed over plain decode, ≈ where that was not measured."""
    if watched.mode is not None and watched.mode.name == "ar":
        return []
    if watched.plain_per_second:
        return [f"{timings.predicted_per_second / watched.plain_per_second:.2f}× ar, measured"]
    return [] if timings.gain is None else [f"≈{timings.gain:.2f}× ar"]


def _wrapped(parts: list[str], width: int) -> list[Content]:
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + len(_GAP) + len(part) <= width:
            lines[-1] += _GAP + part
        else:
            lines.append(part)
    return [Content(line).truncate(width, ellipsis=True) for line in lines]
