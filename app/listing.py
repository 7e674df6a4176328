"""A screen with a line to type in, the list that it filters, and words about what is chosen there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from app.line import Line

Row = TypeVar("Row")
Result = TypeVar("Result")


class ListScreen(ModalScreen[Result], Generic[Row, Result]):
    """All keys go to the line, but for those that move the list and those of a subclass.

    A subclass fills `rows` by `show`, and says what Enter and a click do in `take`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "dismiss", "Close", priority=True),
        Binding("up", "move('cursor_up')", show=False, priority=True),
        Binding("down", "move('cursor_down')", show=False, priority=True),
        Binding("pageup", "move('page_up')", show=False, priority=True),
        Binding("pagedown", "move('page_down')", show=False, priority=True),
    ]

    def __init__(self, name: str, title: str, keys: str, help_text: str, words: str = "") -> None:
        """`name`: of its box in the style sheet; `help_text` stands in the line until there are `words`."""
        super().__init__()
        self._box, self._title, self._keys = name, title, keys
        self.line = Line(words, help_text=help_text)
        self.listing = OptionList(markup=False, classes="list")
        self.listing.can_focus = False
        self.said = Static(markup=False, classes="said")
        self.rows: list[Row] = []  # behind each option

    def compose(self) -> ComposeResult:
        with Vertical(id=self._box, classes="panel") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = Content(self._keys)
            yield from (self.line, self.listing, self.said)

    def take(self, row: Row) -> None:
        """`row` was chosen for good."""
        raise NotImplementedError

    def show(self, rows: Sequence[Row], option: Callable[[Row], Option], at: int) -> None:
        """Lists `rows`, each as `option` draws it, and chooses the one at `at`."""
        self.rows = list(rows)
        self.listing.clear_options()
        self.listing.add_options([option(row) for row in self.rows])
        self.listing.highlighted = min(at, len(self.rows) - 1) if self.rows else None

    @property
    def chosen(self) -> Row | None:
        at = self.listing.highlighted
        return self.rows[at] if at is not None and at < len(self.rows) else None

    def action_move(self, how: str) -> None:
        getattr(self.listing, f"action_{how}")()

    def on_input_submitted(self) -> None:
        if self.chosen is not None:
            self.take(self.chosen)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.take(self.rows[event.option_index])
