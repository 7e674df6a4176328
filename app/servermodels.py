"""The models a server lists, to choose the one that answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input
from textual.widgets.option_list import Option

from app.listing import ListScreen
from app.text import one_line

_MOST_SHOWN = 500


class ServerModelScreen(ListScreen[str, "str | None"]):
    """Its result is the name of the model to ask. `now` is the one that answers; `at_start` keeps a name for
    every start and says so."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+l", "dismiss", "Close", priority=True),
        Binding("ctrl+s", "keep", show=False, priority=True),
    ]

    def __init__(
        self, place: str, names: Sequence[str], now: str, at_start: Callable[[str], str], words: str = ""
    ) -> None:
        title = f"Models of {one_line(place, 40)}"
        super().__init__(
            "models", title, "Enter chooses · Ctrl+S starts with it · Esc", "Type to filter", words
        )
        self._names, self._now, self._at_start = names, now, at_start

    def on_mount(self) -> None:
        self._redraw()

    def on_input_changed(self, _: Input.Changed) -> None:
        self._redraw()

    def _redraw(self) -> None:
        parts = self.line.value.lower().split()
        found = [name for name in self._names if all(part in name.lower() for part in parts)]
        shown = found[:_MOST_SHOWN]
        self.show(shown, self._option, shown.index(self._now) if self._now in shown else 0)
        more = f", the first {_MOST_SHOWN} are shown" if len(found) > _MOST_SHOWN else ""
        self._say(f"{len(found)} of {len(self._names)} models{more}" if self._names else "it lists none")

    def _option(self, name: str) -> Option:
        mark = "▶ " if name == self._now else "  "
        return Option(Content.styled(mark, "$text-accent") + Content(one_line(name)))

    def take(self, row: str) -> None:
        self.dismiss(row)

    def action_keep(self) -> None:
        if self.chosen is not None:
            self._say(self._at_start(self.chosen))

    def _say(self, words: str) -> None:
        self.said.update(Content(one_line(words, 200)))
