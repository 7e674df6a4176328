"""One line to type in."""

from __future__ import annotations

from textual.suggester import Suggester
from textual.widgets import Input


class Line(Input):
    """Its cursor stands still, a blink is a redraw twice a second; getting the focus marks nothing."""

    def __init__(
        self, text: str = "", *, help_text: str = "", suggester: Suggester | None = None, secret: bool = False
    ) -> None:
        """`help_text` is shown until something is typed; what is typed is not where it is `secret`."""
        super().__init__(
            text,
            placeholder=help_text,
            suggester=suggester,
            password=secret,
            compact=True,
            select_on_focus=False,
        )
        self.cursor_blink = False
