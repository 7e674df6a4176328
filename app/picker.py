"""The list of earlier chats to open one of."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from app.text import one_line

if TYPE_CHECKING:
    from app.history import Conversation


class PickerScreen(ModalScreen["Conversation | None"]):
    """Its result is the chosen conversation."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c,ctrl+o", "dismiss", "Close")]

    def __init__(self, conversations: Sequence[Conversation]) -> None:
        super().__init__()
        self._conversations = conversations

    def compose(self) -> ComposeResult:
        options = OptionList(*(_option(item) for item in self._conversations), id="picker", markup=False)
        options.border_title = "Chats"
        options.border_subtitle = "Enter opens, Esc closes"
        yield options

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._conversations[event.option_index])


def _option(item: Conversation) -> Option:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.updated))
    title = one_line(item.title or item.draft, 100) or "(no title)"
    note = "  open in another window" if item.open_elsewhere else ""
    line = Content.styled(when, "$text-muted") + Content(f"  {title}") + Content.styled(note, "$text-warning")
    return Option(line, disabled=item.open_elsewhere)
