"""Turns token bytes into text: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Text of one answer as its tokens come.

    Holds back bytes of an unfinished character and any tail that may become a stop string.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(text for text in stop if text)
        self._held = ""
        self.stopped = False

    def push(self, piece: bytes) -> str:
        """Adds one token's bytes; returns the text that is certain now. Sets `stopped` on a stop string."""
        if self.stopped:
            return ""
        text = self._held + self._decoder.decode(piece)
        if not self._stop:
            return text
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = self._overlap(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def mark(self, tag: str) -> str:
        """Writes `tag`, of which no stop string is part, and none goes on behind it; what comes before it."""
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        self._decoder.reset()
        return text + tag

    def finish(self) -> str:
        """The end: what was held back. A character cut in half becomes one U+FFFD."""
        if self.stopped:
            return ""
        text, self._held = self._held + self._decoder.decode(b"", final=True), ""
        return text

    def _overlap(self, text: str) -> int:
        """Length of the longest tail of `text` that begins a stop string."""
        longest = min(len(text), max(len(stop) for stop in self._stop) - 1)
        for length in range(longest, 0, -1):
            tail = text[len(text) - length :]
            if any(stop.startswith(tail) for stop in self._stop):
                return length
        return 0
