"""What a terminal sends, with bracketed pastes taken out whole before Textual looks for keys in them.

Textual 8.2.8 reads a paste like typing, a character at a time: an escape byte in it and up to 32 characters
behind it leave the paste and become keys (so a paste could quit the program, or send).
"""

from __future__ import annotations

from collections.abc import Iterable

from textual import events
from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.drivers import linux_driver
from textual.message import Message


class PasteParser(XTermParser):
    """Textual's own parser sees the brackets of a paste, and nothing between them."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._pasted: list[str] | None = None  # the paste so far; None outside of one
        self._tail = ""  # of what came before: a bracket may come in two reads

    def feed(self, data: str) -> Iterable[Message]:
        if not data:  # the end
            yield from super().feed(data)
        while data:
            bracket = BRACKETED_PASTE_START if self._pasted is None else BRACKETED_PASTE_END
            seen = self._tail + data
            found = seen.find(bracket)
            end = found + len(bracket) - len(self._tail) if found >= 0 else len(data)
            part, data = data[:end], data[end:]
            self._tail = "" if found >= 0 else seen[1 - len(bracket) :]
            if self._pasted is None:
                yield from super().feed(part)
                self._pasted = [] if found >= 0 else None
                continue
            self._pasted.append(part)
            if found >= 0:
                # The parser leaves its paste too; it was empty.
                yield from (e for e in super().feed(bracket) if not isinstance(e, events.Paste))
                text, self._pasted = "".join(self._pasted)[: -len(bracket)], None
                yield events.Paste(text.replace("\x00", ""))


def use() -> None:
    """From now on. The driver has no other place to say which parser it uses."""
    linux_driver.XTermParser = PasteParser  # type: ignore[attr-defined]
