"""The box the user writes in: Enter sends, a pasted newline never does."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from textual import events
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
from textual.content import Content
from textual.document._document import Document, Location
from textual.keys import Keys
from textual.message import Message
from textual.widgets import TextArea

from app.graphemes import bounds
from app.text import display

if TYPE_CHECKING:
    from textual.timer import Timer

# Most terminals send Alt+Enter as these two bytes; Textual would take them for a plain Enter.
ANSI_SEQUENCES_KEYS["\x1b\r"] = (Keys.ControlJ,)  # type: ignore[index]

_NEWLINE_KEYS = ("ctrl+j", "alt+enter", "shift+enter")
# A terminal without bracketed paste types a paste, so what follows an Enter this soon was not a person.
_BURST_S = 0.03
_KEYS = "Enter sends · Ctrl+J new line · / commands · F1 keys"
_LONG_PROMPT = 2000  # characters from which the prompt's size is shown
_CHARACTERS_PER_TOKEN = 4


class Prompt(TextArea):
    """Grows with its text up to the height the style sheet allows."""

    @dataclass
    class Sent(Message):
        text: str

    def __init__(self) -> None:
        super().__init__(
            id="prompt",
            soft_wrap=True,
            tab_behavior="focus",
            show_line_numbers=False,
            highlight_cursor_line=False,
        )
        self.border_subtitle = _KEYS
        self.cursor_blink = False  # a blink is a redraw twice a second
        self._enter: Timer | None = None
        self._entered = ""  # what that Enter is about to send
        self._last_key = 0.0
        self._pasting = False

    @property
    def title_width(self) -> int:
        """Cells that a title has in the frame."""
        return max(0, self.size.width - 2)

    def tell(self, title: str, keys: str, context_size: int, too_long: str) -> None:
        """Writes into the frame: `title`, else how much a long prompt takes, and what the keys do.

        `too_long` is the engine's word that it does not fit; only the engine can count exactly.
        """
        if too_long:
            title = f"▲ {too_long}"
        elif not title and len(self.text) >= _LONG_PROMPT:
            tokens = len(self.text) // _CHARACTERS_PER_TOKEN
            title = f"about {tokens} tokens"
            if context_size and tokens > context_size:
                title = f"▲ {title}, the context holds {context_size}"
        self.border_title = Content(title)
        self.border_subtitle = Content(keys or _KEYS)

    async def _on_key(self, event: events.Key) -> None:
        now = time.monotonic()
        burst = now - self._last_key < _BURST_S
        self._last_key = now
        if not burst:
            self._pasting = False
        if burst and (event.is_printable or event.key == "enter"):
            self._enter_was_pasted()
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            if self._pasting:
                self.insert("\n")
            else:
                # Editing keys that come until then are not part of what was sent.
                self._entered = self.text
                self._enter = self.set_timer(_BURST_S, partial(self._send, self._entered))
        elif event.key in ("tab", "shift+tab") or (event.key == "up" and not self.text):
            event.stop()
            event.prevent_default()
            await self.app.run_action("move(-1)")
        elif event.key in _NEWLINE_KEYS:
            event.stop()
            event.prevent_default()
            self.insert("\n")
        elif bindings := self._bindings.key_to_bindings.get(event.key):
            # Textual leaves these to the app, which gets to them after the printable keys that wait here.
            event.stop()
            event.prevent_default()
            for binding in bindings:
                if await self.app.run_action(binding.action, self):
                    break

    # The cursor stands between characters, also where one has several code points.

    def clamp_visitable(self, location: Location) -> Location:
        row, column = super().clamp_visitable(location)
        return row, bounds(self.document[row], column)[0]

    def get_cursor_left_location(self) -> Location:
        row, column = super().get_cursor_left_location()
        return row, bounds(self.document[row], column)[0]

    def get_cursor_right_location(self) -> Location:
        row, column = self.cursor_location
        line = self.document[row]
        return (row, bounds(line, column)[1]) if column < len(line) else super().get_cursor_right_location()

    def _enter_was_pasted(self) -> None:
        if self._enter is not None:
            self._enter.stop()
            self._enter = None
            self._pasting = True
            self.insert("\n")

    def take_enter(self) -> str | None:
        """What an Enter sends that might have been pasted still: the key that follows shows it was not."""
        if self._enter is None:
            return None
        self._enter.stop()
        self._enter = None
        return self._entered if self._entered.strip() else None

    def _send(self, text: str | None = None) -> None:
        self._enter = None
        text = self.text if text is None else text
        if text.strip():
            self.post_message(self.Sent(text))

    def take(self, sent: str) -> None:
        """Removes `sent`, and leaves what was typed behind it since."""
        if self.text.startswith(sent):
            self.delete((0, 0), cast(Document, self.document).get_location_from_index(len(sent)))
        else:
            self.clear()

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self._enter_was_pasted()
        if text := display(event.text):
            self.insert(text)
