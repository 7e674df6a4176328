"""Rows of figures and switches, one of them chosen: lines drawn one by one, because they change often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

Look = Literal["heading", "label", "value", "full", "empty", "faint", "warning"]

_LABEL = 14  # cells, so that values stand below each other


@dataclass(frozen=True, slots=True)
class Row:
    """`pieces`: texts and how they look. `why` explains the row while it is chosen. A `switch` can be turned;
    a row without a name is a heading."""

    name: str
    pieces: tuple[tuple[str, Look], ...]
    why: str = ""
    switch: bool = False


def labelled(words: str) -> tuple[str, Look]:
    return f"{words:<{_LABEL}}", "label"


class Sheet(ScrollView, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down", "move(1)", show=False),
        Binding("left", "turn(-1)", show=False),
        Binding("right", "turn(1)", show=False),
        Binding("enter", "pick", show=False),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "sheet--heading",
        "sheet--label",
        "sheet--value",
        "sheet--full",
        "sheet--empty",
        "sheet--faint",
        "sheet--warning",
        "sheet--chosen",
    }

    class Chosen(Message):
        """Another row is chosen."""

    @dataclass
    class Turned(Message):
        """A switch is to go `step` further, 0 where its value is to be asked for."""

        row: Row
        step: int

    def __init__(self) -> None:
        super().__init__()
        self._rows: tuple[Row, ...] = ()
        self._at = 0
        self._looks: dict[str, Style] = {}

    @property
    def chosen(self) -> Row | None:
        return self._rows[self._at] if self._at < len(self._rows) else None

    @property
    def text(self) -> str:
        return "\n".join("".join(text for text, _ in row.pieces) for row in self._rows)

    def show(self, rows: tuple[Row, ...]) -> None:
        """Draws those that changed; the chosen one stays that by its name."""
        old, name = self._rows, self.chosen.name if self.chosen else ""
        self._rows = rows
        names = [row.name for row in rows]
        first = next((at for at, row in enumerate(rows) if row.switch), 0)
        at = names.index(name) if name and name in names else first
        if len(rows) != len(old) or at != self._at:
            self._at = at
            self.virtual_size = Size(1, len(rows))  # rows end where the widget does
            self.refresh()
            return
        for number, (row, before) in enumerate(zip(rows, old, strict=True)):
            if row.pieces != before.pieces:
                self.refresh_lines(number)

    def action_move(self, step: int) -> None:
        at = self._at + step
        while 0 <= at < len(self._rows) and not self._rows[at].name:
            at += step
        if 0 <= at < len(self._rows):
            self._choose(at)
        else:
            self.scroll_relative(y=step, animate=False)  # a heading at the edge is worth seeing

    def action_turn(self, step: int) -> None:
        if self.chosen is not None and self.chosen.switch:
            self.post_message(self.Turned(self.chosen, step))

    def action_pick(self) -> None:
        self.action_turn(0)

    def _choose(self, at: int) -> None:
        before, self._at = self._at, at
        self.refresh_lines(before)
        self.refresh_lines(at)
        top, height = self.scroll_offset.y, self.size.height
        if at < top:
            self.scroll_to(y=at, animate=False)
        elif at >= top + height:
            self.scroll_to(y=at - height + 1, animate=False)
        self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        at = self.scroll_offset.y + event.y
        if at < len(self._rows) and self._rows[at].name:
            if at == self._at:
                self.action_pick()
            else:
                self._choose(at)

    def on_focus(self) -> None:
        self.refresh_lines(self._at)

    def on_blur(self) -> None:
        self.refresh_lines(self._at)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._looks.clear()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        at, width = self.scroll_offset.y + y, self.size.width
        base = self.rich_style
        if at >= len(self._rows):
            return Strip.blank(width, base)
        row, extra = self._rows[at], Style.null()
        if at == self._at and self.has_focus:
            extra = Style(bgcolor=self._look("chosen").bgcolor, bold=True)
        mark = ("▸ " if at == self._at else "  ") if row.name else ""
        segments = [Segment(mark, base + extra)]
        segments += [Segment(text, self._look(look) + extra) for text, look in row.pieces]
        return Strip(segments).adjust_cell_length(width, base + extra)

    def _look(self, name: str) -> Style:
        """Each look at a style walks up the tree of widgets: once until styles change."""
        if name not in self._looks:
            self._looks[name] = self.get_component_rich_style(f"sheet--{name}")
        return self._looks[name]
