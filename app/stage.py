"""The transcript and, while one is open, a panel: beside it, below it, or in its place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.widget import Widget

_WIDE = 110  # columns that leave a transcript readable beside a panel


class Panel(Widget):
    """One that `covers` is in the transcript's place where there is no room beside it, any other below it."""

    covers: ClassVar[bool] = False


class Stage(Horizontal):
    """Holds one panel at a time, which has the style class `side`. Calls `changed` after another one."""

    def __init__(self, transcript: Widget, changed: Callable[[], Awaitable[None]]) -> None:
        super().__init__(id="stage")
        self._transcript, self._changed = transcript, changed
        self.panel: Panel | None = None

    def compose(self) -> ComposeResult:
        yield self._transcript

    @property
    def hides_transcript(self) -> bool:
        return self.panel is not None and self.panel.covers and self._is_narrow

    @property
    def _is_narrow(self) -> bool:
        return self.size.width < _WIDE

    async def toggle(self, kind: type[Panel], make: Callable[[], Panel]) -> None:
        """Opens the panel that `make` makes in place of any other; closes one of that `kind`."""
        same = isinstance(self.panel, kind)
        await self._remove()
        if not same:
            self.panel = make()
            self.panel.add_class("side")
            self._arrange()
            await self.mount(self.panel)
        await self._changed()

    async def close(self) -> None:
        await self._remove()
        await self._changed()

    async def leave(self) -> bool:
        """Gives the keys back to the prompt, and the room to the transcript; False when it has both."""
        if self.panel is None or not (self.panel.has_focus_within or self.hides_transcript):
            return False
        if self.hides_transcript:
            await self.close()
        else:
            self._to_prompt()
        return True

    async def _remove(self) -> None:
        panel, self.panel = self.panel, None
        if panel is not None:
            had_keys = panel.has_focus_within
            await panel.remove()
            self._arrange()
            if had_keys:
                self._to_prompt()

    def on_resize(self, _: events.Resize) -> None:
        self._arrange()

    def _arrange(self) -> None:
        self._transcript.display = not self.hides_transcript
        self.set_class(self.hides_transcript, "covered")
        self.set_class(self._is_narrow and not self.hides_transcript, "stacked")

    def _to_prompt(self) -> None:
        self.screen.query_one("#prompt").focus(scroll_visible=False)
