"""Makes text from models, users and files safe to show: no terminal control, no surprises in width."""

from __future__ import annotations

import re

# CSI, OSC/DCS/PM/APC/SOS strings with their terminator, two-byte escapes; 8-bit forms as well.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-Z\\`-~]"
)
# An escape sequence that may go on in the next chunk.
_UNFINISHED = re.compile(r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\x9c]{0,4096}\x1b?|[ -/]*)?|\r)\Z")
# C0 and C1 controls but newline and tab, and the marks that reorder what follows on a line.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def clean(text: str) -> str:
    """`text` without terminal control; every line ending becomes a newline."""
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROL.sub("", text)


def without_control(text: str) -> str:
    """`text` of a single line without anything that is no character; what follows an escape stays."""
    return _CONTROL.sub("", text).replace("\n", "").replace("\t", "")


def display(text: str) -> str:
    """`clean` with tabs as spaces, because a tab's width is the terminal's secret."""
    return clean(text).expandtabs(4)


def one_line(text: str, limit: int = 200) -> str:
    """`text` as one short line, for titles and notices."""
    line = " ".join(display(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


class Cleaner:
    """`clean` for a stream: an escape sequence cut by a chunk's end is still recognised."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, chunk: str) -> str:
        text = self._held + chunk
        unfinished = _UNFINISHED.search(text)
        self._held = unfinished.group() if unfinished else ""
        return clean(text[: len(text) - len(self._held)])

    def close(self) -> str:
        text, self._held = self._held, ""
        return clean(text)
