"""The transcript and, while one is open, a panel: beside it, or in its place where the terminal is narrow."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widget import Widget

_WIDE = 110  # columns that leave a transcript readable beside a panel


class Stage(Horizontal):
    """Holds one panel at a time, which has the style class `side`."""

    def __init__(self, transcript: Widget) -> None:
        super().__init__(id="stage")
        self._transcript = transcript
        self.panel: Widget | None = None

    def compose(self) -> ComposeResult:
        yield self._transcript

    @property
    def hides_transcript(self) -> bool:
        return self.panel is not None and self.size.width < _WIDE

    async def toggle(self, kind: type[Widget], make: Callable[[], Widget]) -> None:
        """Opens the panel that `make` makes in place of any other; closes one of that `kind`."""
        same = isinstance(self.panel, kind)
        await self.close()
        if not same:
            self.panel = make()
            self.panel.add_class("side")
            self._arrange()
            await self.mount(self.panel)

    async def close(self) -> None:
        panel, self.panel = self.panel, None
        if panel is not None:
            await panel.remove()
            self._arrange()
            self._to_prompt()

    async def leave(self) -> bool:
        """Gives the keys back to the prompt, and the room to the transcript; False when it has both."""
        if self.panel is None or not (self.panel.has_focus_within or self.hides_transcript):
            return False
        if self.hides_transcript:
            await self.close()
        else:
            self._to_prompt()
        return True

    def on_resize(self, _: events.Resize) -> None:
        self._arrange()

    def _arrange(self) -> None:
        self._transcript.display = not self.hides_transcript
        self.set_class(self.hides_transcript, "narrow")

    def _to_prompt(self) -> None:
        self.screen.query_one("#prompt").focus(scroll_visible=False)
