"""One message of the transcript: who speaks, the text, and a foot line about how it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rich.segment import Segment

from app.body import Body
from app.text import display

if TYPE_CHECKING:
    from app.markdown import Line, MarkdownRenderer

Role = Literal["user", "assistant", "notice"]

_SHOWN_CHARACTERS = 12_000
_BAR = "┃ "
_MARGIN = Segment("  ")
_SIGN = "▲ "


class Message:
    """What is shown, not what is stored: the text is safe for a terminal, the foot is ours."""

    def __init__(self, role: Role, text: str = "", foot: str = "") -> None:
        self.role: Role = role
        self.foot = foot
        self._body = Body(text, _MARGIN)

    @property
    def text(self) -> str:
        return self._body.text

    def append(self, chunk: str) -> None:
        self._body.append(chunk)

    def close(self, foot: str) -> None:
        self._body.close()
        self.foot = foot

    def lines(self, renderer: MarkdownRenderer, width: int) -> list[Line]:
        """The message's lines, `width` cells at most, with a blank line at the end."""
        palette = renderer.palette
        inner = max(1, width - len(_BAR))
        if self.role == "assistant":
            lines = self._body.lines(renderer, inner)
        else:
            style, mark = (palette.user, Segment(_BAR, palette.bar))
            if self.role == "notice":
                style, mark = (palette.notice, Segment(_SIGN, palette.notice))
            lines = [[mark, *line] for line in renderer.plain(_abridged(self.text), inner, style)]
        if self.foot:
            foot = renderer.plain(display(self.foot), inner, palette.meta)
            lines = lines + [[_MARGIN, *line] for line in foot]
        return [*lines, []]


def _abridged(text: str) -> str:
    """A pasted file is stored and sent whole, but shown by its start and end."""
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    half = _SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} more characters …\n{text[-half:]}"
