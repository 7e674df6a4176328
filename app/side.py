"""Panels that one looks at while the chat goes on: beside it where the terminal is wide, else below it."""

from __future__ import annotations

from textual.containers import Vertical
from textual.widget import Widget


class Side(Vertical):
    """Takes no room while none of its panels is shown."""

    def __init__(self, *panels: Widget) -> None:
        super().__init__(*panels, id="side")
        for panel in panels:
            panel.display = False
        self.display = False

    def toggle(self, panel: Widget) -> bool:
        """Shows `panel` or hides it; whether it is shown now."""
        panel.display = not panel.display
        self.display = any(child.display for child in self.children)
        return panel.display
