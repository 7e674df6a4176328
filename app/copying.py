"""Copies an answer or one of its code blocks, to the clipboard and to a file."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from app.blocks import blocks
from app.copy import copy_out
from engine.thoughts import split

if TYPE_CHECKING:
    from app.chat import ChatApp

_AGAIN_S = 5.0  # a key pressed again this soon goes on to the next code block


class Copying:
    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._last: tuple[str, int, float] = ("", 0, 0.0)  # of which answer, which block, when

    async def copy(self, word: str = "") -> None:
        """The answer; block `word` of it; without a number the key pressed again takes block after block."""
        text = self.answer
        if not text:
            self._app.hint("There is no answer to copy yet.")
            return
        if word.isdigit() and int(word):
            self.block(text, int(word))
            return
        answer, number, when = self._last
        count = len(blocks(text))
        if answer == text and time.monotonic() - when < _AGAIN_S and number < count:
            self.block(text, number + 1)
            return
        self._last = (text, 0, time.monotonic())
        more = f" Again: its {count} code blocks." if count > 1 else " Again: its code." if count else ""
        self._app.hint(self._out(text, "last-answer.md") + more)

    @property
    def answer(self) -> str:
        """The last answer without its thoughts, also while it is written."""
        asker, entry = self._app.asker, self._app.chats.open.last_answer
        return split(asker.text if asker.entry else entry.text if entry else "")[1]

    def block(self, text: str, number: int) -> None:
        """The code block of `text` that has this number, counted from 1."""
        found = blocks(text)
        if number > len(found):
            self._app.hint(
                f"There are {len(found)} code blocks." if found else "There is no code in this answer."
            )
            return
        block = found[number - 1]
        self._last = (text, number, time.monotonic())
        what = f"{block.language} " if block.language else ""
        lines = block.code.count("\n")
        said = self._out(block.code, "last-code.txt")
        self._app.hint(
            f"{what}block {number} of {len(found)}, {lines} {'line' if lines == 1 else 'lines'}: {said}"
        )

    def message(self, text: str) -> None:
        """Any message."""
        self._app.hint(self._out(text, "last-message.md"))

    def _out(self, text: str, name: str) -> str:
        return copy_out(self._app.copy_to_clipboard, text, self._app.paths.state / name)
