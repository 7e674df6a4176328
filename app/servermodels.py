"""The models a server lists, to choose the one that answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.text import one_line

_MOST_SHOWN = 500


class ServerModelScreen(ModalScreen["str | None"]):
    """Its result is the name of the model to ask. `now` is the one that answers; `at_start` keeps a name for
    every start and says so."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c,ctrl+l", "dismiss", "Close", priority=True),
        Binding("up", "move('cursor_up')", show=False, priority=True),
        Binding("down", "move('cursor_down')", show=False, priority=True),
        Binding("pageup", "move('page_up')", show=False, priority=True),
        Binding("pagedown", "move('page_down')", show=False, priority=True),
        Binding("ctrl+s", "keep", show=False, priority=True),
    ]

    def __init__(
        self, place: str, names: Sequence[str], now: str, at_start: Callable[[str], str], words: str = ""
    ) -> None:
        super().__init__()
        self._place, self._names, self._now, self._at_start = place, names, now, at_start
        self._words = words
        self._shown: list[str] = []

    def compose(self) -> ComposeResult:
        with Vertical(id="models", classes="panel") as box:
            box.border_title = Content(f"Models of {one_line(self._place, 40)}")
            box.border_subtitle = "Enter chooses · Ctrl+S starts with it · Esc"
            yield Input(self._words, placeholder="Type to filter", compact=True, select_on_focus=False)
            yield OptionList(markup=False, classes="list")
            yield Static(markup=False, classes="said")

    def on_mount(self) -> None:
        self.query_one(OptionList).can_focus = False  # keys go to the line, which moves the list
        self._redraw()

    def on_input_changed(self, _: Input.Changed) -> None:
        self._redraw()

    def _redraw(self) -> None:
        parts = self.query_one(Input).value.lower().split()
        found = [name for name in self._names if all(part in name.lower() for part in parts)]
        self._shown = found[:_MOST_SHOWN]
        listing = self.query_one(OptionList)
        listing.clear_options()
        listing.add_options([self._option(name) for name in self._shown])
        at = self._shown.index(self._now) if self._now in self._shown else 0
        listing.highlighted = at if self._shown else None
        more = f", the first {_MOST_SHOWN} are shown" if len(found) > _MOST_SHOWN else ""
        self._say(f"{len(found)} of {len(self._names)} models{more}" if self._names else "it lists none")

    def _option(self, name: str) -> Option:
        mark = "▶ " if name == self._now else "  "
        return Option(Content.styled(mark, "$text-accent") + Content(one_line(name)))

    @property
    def _chosen(self) -> str | None:
        at = self.query_one(OptionList).highlighted
        return self._shown[at] if at is not None and at < len(self._shown) else None

    def action_move(self, how: str) -> None:
        getattr(self.query_one(OptionList), f"action_{how}")()

    def on_input_submitted(self) -> None:
        if self._chosen is not None:
            self.dismiss(self._chosen)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._shown[event.option_index])

    def action_keep(self) -> None:
        if self._chosen is not None:
            self._say(self._at_start(self._chosen))

    def _say(self, words: str) -> None:
        self.query_one(Static).update(Content(one_line(words, 200)))
