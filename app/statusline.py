"""The line above the prompt: what the engine does, which model and mode, how fast, how full."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from app.labels import ModeLabel, acceptance, hits, per_pass, read_per_token, speed
from app.text import one_line
from engine.events import Timings

if TYPE_CHECKING:
    from textual.timer import Timer

#: Each state has a glyph and a word, because a colour alone says nothing on a terminal without colours.
GLYPHS = {"ready": "●", "answering": "▶", "waiting": "◌", "stopping": "■", "problem": "▲"}

_GAP = " │ "
_HINT_S = 3.0


@dataclass(frozen=True, slots=True)
class Status:
    """`kind` is a key of GLYPHS, `words` say it; mode and numbers are of the running answer or the last one.

    `next_mode`: of the answer after the running one, where that is another. `memory` is said where there is
    a budget. `has_store`: experts are read as they are needed. `place`: where the engine is, "" for this
    machine.
    """

    kind: str = "waiting"
    words: str = "starting the engine"
    model: str = ""
    mode: ModeLabel | None = None
    timings: Timings | None = None
    context_n: int = 0
    context_size: int = 0
    memory: str = ""
    has_store: bool = False
    place: str = ""
    next_mode: ModeLabel | None = None


class StatusLine(Static):
    """Drops what matters least where the terminal is narrow.

    A hint takes its place for a moment: above it, it would hide the lines that stream in.
    """

    def __init__(self) -> None:
        super().__init__(id="status", markup=False)
        self._status = Status()
        self.hint = ""
        self._hint_end: Timer | None = None

    @property
    def text(self) -> str:
        return self._content.plain

    @property
    def _content(self) -> Content:
        if self.hint:
            return Content.styled(one_line(self.hint, 500), "bold")
        return _fit(self._status, self.size.width)

    def show(self, status: Status) -> None:
        if status != self._status:
            self._status = status
            if not self.hint:
                self._draw()

    def say(self, hint: str) -> None:
        """Shows `hint`, "" to end it."""
        if self._hint_end is not None:
            self._hint_end.stop()
        self.hint = hint
        self._hint_end = self.set_timer(_HINT_S, partial(self.say, "")) if hint else None
        self._draw()

    def _draw(self) -> None:
        self.update(self._content, layout=False)

    def on_resize(self) -> None:
        self._draw()


def _fit(status: Status, width: int) -> Content:
    parts = _parts(status)
    while len(parts) > 1 and _width(parts) > width:
        parts.remove(max(parts, key=lambda part: part[0]))
    state, *others = [text for _, text in parts]
    content = Content.styled(f"{GLYPHS[status.kind]} {state}", _STYLES[status.kind])
    for text in others:
        content += Content.styled(_GAP, "dim") + Content(text)
    return content


def _width(parts: list[tuple[int, str]]) -> int:
    return sum(Content(text).cell_length for _, text in parts) + len(_GAP) * (len(parts) - 1) + 2


def _parts(status: Status) -> list[tuple[int, str]]:
    """What to show in this order, each with its rank: the highest rank is dropped first."""
    timings = status.timings
    parts = [(0, one_line(status.words, 70)), (9, status.model), (1, str(status.mode or ""))]
    if status.next_mode:
        label = status.next_mode
        parts.append((3, f"next {label.name if label.exact else label}"))
    if status.place:
        parts.insert(1, (3, f"at {status.place}"))
    if timings and timings.predicted_n:
        parts += [
            (2, speed(timings.predicted_per_second)),
            (6, f"acc {acceptance(timings)}"),
            (7, f"{per_pass(timings)}/pass"),
        ]
        if status.has_store:
            parts += [(4, f"hit {hits(timings)}"), (5, read_per_token(timings))]
    if status.memory:
        parts.append((8, f"mem {status.memory}"))
    if status.context_size:
        parts.append((3, f"ctx {status.context_n}/{status.context_size}"))
    return [(rank, text) for rank, text in parts if text]


_STYLES = {
    "ready": "$text-success",
    "answering": "bold $text-primary",
    "waiting": "$text-warning",
    "stopping": "$text-warning",
    "problem": "bold $text-error",
}
