"""One message of the transcript: who speaks, the text, and a foot line about how it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rich.segment import Segment
from textual.strip import Strip

from app.body import Body
from app.text import display

if TYPE_CHECKING:
    from rich.style import Style

    from app.markdown import Line, MarkdownRenderer

Role = Literal["user", "assistant", "notice"]

_BAR = "┃ "
_MARGIN = "  "
_SIGN = "▲ "


class Message:
    """What is shown, not what is stored: the text is safe for a terminal, the foot is ours."""

    def __init__(self, role: Role, text: str = "", foot: str = "") -> None:
        self.role: Role = role
        self.foot = foot
        self._body = Body(text)

    @property
    def text(self) -> str:
        return self._body.text

    def append(self, chunk: str) -> None:
        self._body.append(chunk)

    def close(self, foot: str) -> None:
        self._body.close()
        self.foot = foot

    def strips(self, renderer: MarkdownRenderer, width: int) -> list[Strip]:
        """The message's lines, `width` cells at most, with a blank line at the end."""
        palette = renderer.palette
        inner = max(1, width - len(_BAR))
        if self.role == "assistant":
            lines = [_strip(_MARGIN, None, line) for line in self._body.lines(renderer, inner)]
        else:
            style, sign = (palette.user, _BAR) if self.role == "user" else (palette.notice, _SIGN)
            mark = palette.bar if self.role == "user" else palette.notice
            lines = [_strip(sign, mark, line) for line in renderer.plain(self.text, inner, style)]
        if self.foot:
            foot = renderer.plain(display(self.foot), inner, palette.meta)
            lines += [_strip(_MARGIN, None, line) for line in foot]
        return [*lines, Strip([], 0)]


def _strip(sign: str, style: Style | None, line: Line) -> Strip:
    return Strip([Segment(sign, style), *line])
