"""A short list to choose one thing from, and a line to type one thing in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.line import Line
from app.text import display


@dataclass(frozen=True, slots=True)
class Choice:
    """`name` is the result, `title` what is shown first, `words` explain it. `off`: it cannot be chosen."""

    name: str
    title: str
    words: str = ""
    off: bool = False


class ChoiceScreen(ModalScreen["str | None"]):
    """Its result is the chosen name, None when nothing was chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "dismiss", "Close")]

    def __init__(self, title: str, choices: Sequence[Choice], said: str = "") -> None:
        super().__init__()
        self._title, self._choices, self._said = title, choices, said

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = Content("Enter chooses · Esc closes")
            if self._said:
                yield Static(Content(display(self._said)), classes="said")
            width = max(len(choice.title) for choice in self._choices)
            yield OptionList(
                *(_option(choice, width) for choice in self._choices), markup=False, classes="list"
            )

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(self._choices[event.option_index].name)


class LineScreen(ModalScreen["str | None"]):
    """Its result is what was typed, None when Esc closed it. `said` stands above the line.

    A `secret` is not shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,ctrl+c", "dismiss", "Close", priority=True)]

    def __init__(
        self,
        title: str,
        text: str = "",
        *,
        said: str = "",
        suggester: Suggester | None = None,
        secret: bool = False,
    ) -> None:
        super().__init__()
        self._title, self._text, self._said, self._suggester = title, text, said, suggester
        self._secret = secret

    def compose(self) -> ComposeResult:
        with Vertical(classes="panel") as box:
            box.border_title = Content(self._title)
            box.border_subtitle = Content("Enter takes it · Esc closes")
            if self._said:
                yield Static(Content(display(self._said)), classes="said")
            yield Line(self._text, suggester=self._suggester, secret=self._secret)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


def _option(choice: Choice, width: int) -> Option:
    line = Content(f"{choice.title:<{width}}")
    if choice.words:
        line += Content.styled(f"  {choice.words}", "dim")
    return Option(line.stylize("dim") if choice.off else line, disabled=choice.off)
