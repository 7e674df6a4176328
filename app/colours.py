"""A screen without colours, as NO_COLOR asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.filter import LineFilter

if TYPE_CHECKING:
    from textual.color import Color


class Colourless(LineFilter):
    """Textual would send greys, which are colours to a terminal and unreadable on some backgrounds."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        return [
            Segment(text, style.without_color if style else None, control)
            for text, style, control in segments
        ]
