"""The settings on a screen: each with its value, what it means and when it counts; changed in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from app.line import Line
from app.setting import SETTINGS, Setting, parse_words, words_of
from app.text import one_line
from engine.errors import BadRequest

if TYPE_CHECKING:
    from app.adjusting import Adjusting

_NAME = 18
_KEYS = "Enter changes · Del to the default · Esc closes"
_EDIT_KEYS = "Enter keeps it, empty for the default · Esc leaves it"


class SettingScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "leave", "Close", priority=True),
        Binding("delete,backspace", "reset", "Default"),
    ]

    def __init__(self, adjusting: Adjusting) -> None:
        super().__init__()
        self._adjusting = adjusting
        self._rows: list[Setting | None] = []  # None is a heading
        self._said = ""
        self._at = 0

    def compose(self) -> ComposeResult:
        with Vertical(id="settings", classes="panel") as box:
            box.border_title = "Settings"
            box.border_subtitle = _KEYS
            yield OptionList(markup=False, classes="list")
            yield Line()
            yield Static(markup=False, classes="said")

    def on_mount(self) -> None:
        self.query_one(Input).display = False
        self.call_after_refresh(self._redraw)

    def on_resize(self) -> None:
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        listing = self.query_one(OptionList)
        at = listing.highlighted
        width = max(20, listing.content_size.width - 2)
        self._rows, options, section = [], [], ""
        for setting in SETTINGS:
            if setting.section != section:
                section = setting.section
                self._rows.append(None)
                options.append(Option(Content.styled(section, "bold $text-accent"), disabled=True))
            self._rows.append(setting)
            options.append(Option(self._line(setting, width)))
        listing.clear_options()
        listing.add_options(options)
        listing.highlighted = 0 if at is None else at
        self._explain()

    def _line(self, setting: Setting, width: int) -> Content:
        value = self._adjusting.settings.get(setting.key)
        off = "dim" if self._adjusting.lack(setting) else ""
        indent = "  " if setting.section else ""
        name = Content(f"{indent + setting.name:<{_NAME}}")
        if value is None:
            return name.stylize(off) + Content.styled(
                one_line(f"{setting.default} (default)", width - _NAME - 2), "dim"
            )
        return (name + Content.styled(one_line(words_of(value), width - _NAME - 2), "bold")).stylize(off)

    def _explain(self) -> None:
        setting, path = self._chosen, self._adjusting.settings.path
        words = Content("")
        if self._said:
            words = Content.styled(one_line(self._said, 300), "$text-warning")
        elif setting is not None:
            when = self._adjusting.lack(setting) or f"counts {setting.when}"
            words = Content(f"{setting.help[0].upper()}{setting.help[1:]}. {when[0].upper()}{when[1:]}.")
        place = one_line(str(path or "there is no place to keep settings"), 300)
        self.query_one(Static).update(words + Content(f"\n{place}"))

    @property
    def _chosen(self) -> Setting | None:
        at = self.query_one(OptionList).highlighted
        return self._rows[at] if at is not None and at < len(self._rows) else None

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_index != self._at:  # drawing the list anew comes here too
            self._at, self._said = event.option_index, ""
        self._explain()

    # Changing

    async def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        setting = self._rows[event.option_index]
        if setting is None:
            return
        value = self._adjusting.settings.get(setting.key)
        if setting.choices:
            await self._set(setting, _after(setting, value))
            return
        line = self.query_one(Input)
        line.value = words_of(value)
        line.placeholder = setting.default
        line.display = True
        line.focus()
        self.query_one("#settings").border_subtitle = _EDIT_KEYS

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        setting = self._chosen
        if setting is None:
            return
        try:
            value = parse_words(setting, event.value)
        except BadRequest as error:
            self._say(error.line())
            return
        if await self._set(setting, value):
            self._end_edit()

    async def _set(self, setting: Setting, value: Any) -> bool:
        problem = await self._adjusting.set(setting, value)
        self._redraw()
        self._say(problem or f"Kept, counts {setting.when}.")
        return not problem

    def _end_edit(self) -> None:
        self.query_one(Input).display = False
        self.query_one("#settings").border_subtitle = _KEYS
        self.query_one(OptionList).focus()

    async def action_reset(self) -> None:
        setting = self._chosen
        if setting is not None:
            await self._set(setting, None)

    def action_leave(self) -> None:
        if self.query_one(Input).display:
            self._said = ""
            self._end_edit()
            self._explain()
        else:
            self.dismiss()

    def _say(self, words: str) -> None:
        self._said = words
        self._explain()


def _after(setting: Setting, value: Any) -> str:
    """The next of a setting's choices."""
    shown = setting.example.strip('"') if value is None else value
    now = setting.choices.index(shown) if shown in setting.choices else -1
    return setting.choices[(now + 1) % len(setting.choices)]
