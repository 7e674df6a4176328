"""Two answers to one question side by side, one below the other where the terminal is narrow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.comparison import parting
from app.text import display, one_line
from engine.errors import S2Error

if TYPE_CHECKING:
    from app.comparison import Comparison

_DRAW_EVERY_S = 0.2
_MARKED = 24  # characters from where the texts part


class CompareScreen(ModalScreen["int | None"]):
    """Its result is which answer the user takes, None when Esc closed it, which also stops it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c,q", "dismiss", "Close", priority=True),
        Binding("1", "take(0)", "Take the first"),
        Binding("2", "take(1)", "Take the second"),
    ]

    def __init__(self, question: str, comparison: Comparison, labels: tuple[str, str]) -> None:
        super().__init__()
        self._question, self._comparison, self._labels = question, comparison, labels
        self._texts = [Static(markup=False) for _ in labels]
        self._heads = [Static(markup=False, classes="said") for _ in labels]
        self._said = Static(markup=False, id="verdict")
        self._problem = ""
        self._drawn_at = 0.0

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel", id="compare") as box:
            box.border_title = Content(f"Compare: {one_line(self._question, 60)}")
            box.border_subtitle = Content("1 or 2 takes that answer · Tab ↑↓ scroll · Esc closes")
            with Container(id="columns"):
                for number, label in enumerate(self._labels):
                    with Vertical(classes="column") as column:
                        column.border_title = Content(f"{number + 1}  {label}")
                        yield self._heads[number]
                        with VerticalScroll():
                            yield self._texts[number]
            yield self._said

    def on_mount(self) -> None:
        self._draw()
        self.run_worker(self._run())

    async def _run(self) -> None:
        try:
            await self._comparison.run(self._changed)
        except S2Error as error:
            self._problem = error.line()
        self._draw()

    def _changed(self) -> None:
        now = time.monotonic()
        if now - self._drawn_at >= _DRAW_EVERY_S:
            self._drawn_at = now
            self._draw()

    def _draw(self) -> None:
        comparison = self._comparison
        texts = [display(side.text) for side in comparison.sides]
        at = parting(*texts) if comparison.done else None
        running = next((side for side in comparison.sides if not side.finish), None)
        for side, text, head, body in zip(comparison.sides, texts, self._heads, self._texts, strict=True):
            waits = "" if self._problem else "waits" if side is not running else "begins"
            head.update(Content(side.figures or waits))
            body.update(_marked(text, at))
            if side is running and side.text and isinstance(body.parent, VerticalScroll):
                body.parent.scroll_end(animate=False)
        self._said.update(Content("\n".join(self._words())))

    def _words(self) -> list[str]:
        comparison = self._comparison
        if self._problem:
            return [f"▲ {display(self._problem)}"]
        facts = " · ".join(part for part in (comparison.prompt_words(), f"seed {comparison.seed}") if part)
        return [*(comparison.verdict() if comparison.done else ["comparing …"]), facts]

    def action_take(self, number: int) -> None:
        side = self._comparison.sides[number]
        if side.finish and side.text:
            self.dismiss(number)
        else:
            self.notify("That answer is not there yet.", timeout=2)


def _marked(text: str, at: int | None) -> Content:
    """`text` with a mark where it begins to differ."""
    if at is None:
        return Content(text)
    begin, end = at, at + _MARKED
    return Content(text[:begin]) + Content.styled(f"▸{text[begin:end]}", "bold underline") + text[end:]
