"""An answer's text as lines of cells, rendered again only where it grew."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from app.text import Cleaner, display

if TYPE_CHECKING:
    from rich.segment import Segment

    from app.markdown import Line, MarkdownRenderer

# The end of a growing answer is rendered as Markdown up to this many characters, beyond as plain text.
_LIVE_MARKDOWN = 4000
_FENCE = re.compile(r" {0,3}(```+|~~~+)")


class Body:
    """Text that grows at its end. Blocks that are complete keep their lines; only the last is rendered anew.

    A block is complete when a blank line or an opening code fence follows it, outside of any fence.
    `close` renders the text as a whole once more, because lists and tables can span such blocks.
    """

    def __init__(self, text: str, margin: Segment) -> None:
        self.text = display(text)
        self._margin = margin  # stands before every line
        self._cleaner = Cleaner()
        self._growing = False
        self._key = (0, 0)  # the renderer and width that `_settled` was made with
        self._settled: list[Line] = []
        self._settled_end = 0  # characters of `text` that `_settled` shows
        self._scanned = 0  # characters of `text` whose lines have been looked at
        self._fence = ""  # the marker that opened the fence the scan is in
        self._code: list[Line] = []  # complete lines of an open fence
        self._code_end = 0

    def append(self, chunk: str) -> None:
        if not self._growing:
            self._growing = True
            self._forget()
        self.text += self._cleaner.feed(chunk).expandtabs(4)

    def close(self) -> None:
        self.text += self._cleaner.close()
        self._growing = False
        self._forget()

    def lines(self, renderer: MarkdownRenderer, width: int) -> list[Line]:
        if (id(renderer), width) != self._key:
            self._forget()
            self._key = (id(renderer), width)
        if not self._growing:
            if not self._settled:
                self._settled = self._markdown(renderer, self.text, width)
            return self._settled
        self._settle(renderer, width)
        tail = self._tail(renderer, width)
        gap: list[Line] = [[]] if self._settled and tail else []
        return [*self._settled, *gap, *tail]

    def _forget(self) -> None:
        self._key = (0, 0)
        self._settled, self._settled_end = [], 0
        self._scanned, self._fence = 0, ""
        self._code, self._code_end = [], 0

    def _settle(self, renderer: MarkdownRenderer, width: int) -> None:
        """Renders for good what lies before the last safe boundary."""
        boundary = self._scan()
        if boundary <= self._settled_end:
            return
        lines = self._markdown(renderer, self.text[self._settled_end : boundary], width)
        if self._settled and lines:
            self._settled.append([])
        self._settled += lines
        self._settled_end = boundary
        self._code, self._code_end = [], 0

    def _scan(self) -> int:
        """Walks over the complete lines that are new; the last offset where a block ends."""
        boundary = self._settled_end
        while (end := self.text.find("\n", self._scanned)) >= 0:
            line = self.text[self._scanned : end]
            marker = _FENCE.match(line)
            if self._fence:
                if marker and marker[1].startswith(self._fence) and not line.strip("`~ "):
                    self._fence = ""
                    boundary = end + 1
            elif marker:
                self._fence = marker[1]
                boundary = self._scanned
            elif not line.strip() and self._next_line_is_flush(end + 1):
                boundary = end + 1
            elif not line.strip() and end + 1 >= len(self.text):
                break  # what follows decides whether the block goes on
            self._scanned = end + 1
        return boundary

    def _next_line_is_flush(self, start: int) -> bool:
        return start < len(self.text) and not self.text[start].isspace()

    def _tail(self, renderer: MarkdownRenderer, width: int) -> list[Line]:
        tail = self.text[self._settled_end :]
        if self._fence:
            return self._open_fence(renderer, width)
        if len(tail) > _LIVE_MARKDOWN:
            return [[self._margin, *line] for line in renderer.plain(tail, width, renderer.palette.text)]
        return self._markdown(renderer, tail, width) if tail.strip() else []

    def _open_fence(self, renderer: MarkdownRenderer, width: int) -> list[Line]:
        """Code that is still being written: unhighlighted, each complete line rendered once."""
        start = max(self._code_end, self.text.find("\n", self._settled_end) + 1)
        end = self.text.rfind("\n") + 1
        if end > start:
            self._code += self._code_lines(renderer, self.text[start : end - 1], width)
            self._code_end = start = end
        last = self.text[start:] if self.text[start:].strip("`~ ") else ""  # else maybe the fence's end
        return [*self._code, *(self._code_lines(renderer, last, width) if last else [])]

    def _markdown(self, renderer: MarkdownRenderer, text: str, width: int) -> list[Line]:
        return [[self._margin, *line] for line in renderer.markdown(text, width)]

    def _code_lines(self, renderer: MarkdownRenderer, code: str, width: int) -> list[Line]:
        lines = renderer.plain(code, width - 2, renderer.palette.block)
        return [[self._margin, *renderer.padded(line, width)] for line in lines]
