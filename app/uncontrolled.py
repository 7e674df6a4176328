"""The last look at what goes to the terminal: no text of any widget commands it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.filter import LineFilter

from app.text import without_control

if TYPE_CHECKING:
    from textual.color import Color


class Uncontrolled(LineFilter):
    """Names of files and the like get into frames, lists and lines to type in by many ways.

    What is taken out has no width, so every cell stays where it was.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        if all(text.isprintable() for text, _, _ in segments):
            return segments
        return [Segment(without_control(text), style, control) for text, style, control in segments]
