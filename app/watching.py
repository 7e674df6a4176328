"""The panel that shows the speculation as it happens. The engine tells of it only while it is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import Static

from app.stage import Panel
from app.watchview import Watched, watch_lines

if TYPE_CHECKING:
    from pathlib import Path

    from app.answer import Answer
    from app.chat import ChatApp
    from app.entry import Entry

_LEAST_TOKENS = 16  # an `ar` answer must have, or its speed says little


class WatchPanel(Static, Panel):
    def __init__(self) -> None:
        super().__init__(markup=False)
        self.border_title = Content("Speculation")
        self.border_subtitle = Content("Ctrl+S closes")
        self._watched = Watched()
        self.text = ""  # as it was drawn last

    def show(self, watched: Watched) -> None:
        self._watched = watched
        self._draw()

    def _draw(self) -> None:
        content = Content("\n").join(watch_lines(self._watched, self.size.width, self.size.height))
        self.text = content.plain
        self.update(content, layout=False)

    def on_resize(self) -> None:
        self._draw()


class Watching:
    """`panel` follows the answer that is being written, and keeps the last one while its chat shows it."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._answer: Answer | None = None
        self._entry: Entry | None = None
        self._plain: dict[
            tuple[Entry | None, Path | str], float
        ] = {}  # tokens/s of `ar` by question and model

    @property
    def panel(self) -> WatchPanel | None:
        """The panel while it is open."""
        panel = self._app.stage.panel
        return panel if isinstance(panel, WatchPanel) else None

    async def toggle(self) -> None:
        await self._app.stage.toggle(WatchPanel, WatchPanel)

    async def follow(self) -> None:
        """The engine tells of its blocks from now on, or no more."""
        app = self._app
        is_open = self.panel is not None
        if is_open != app.asker.watched:
            app.asker.watched = is_open
            self.draw()
            await app.asker.watch_running()

    def draw(self) -> None:
        """Shows what has come since the last time. Costs nothing while the panel is closed."""
        panel, app, asker = self.panel, self._app, self._app.asker
        if panel is None:
            return
        if asker.answer is not None and asker.entry is not None:
            self._answer, self._entry = asker.answer, asker.entry
        answer, entry = self._answer, self._entry
        if answer is None or entry is None or entry not in app.chats.open.entries:
            panel.show(Watched(mode=app.board.mode))
            return
        plain = self._plain.get((entry.parent, app.link.model))
        panel.show(Watched(answer.looks, app.board.mode_of(answer), answer.timings, plain))

    def ended(self) -> None:
        """An answer is over. One by plain decode is what others to the same question are measured by."""
        entry, self._app.asker.finished = self._app.asker.finished, None
        timings = entry.timings if entry is not None and entry.mode == "ar" else None
        if entry is not None and timings is not None and timings.predicted_n >= _LEAST_TOKENS:
            self._plain[entry.parent, self._app.link.model] = timings.predicted_per_second
        self.draw()
