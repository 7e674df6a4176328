"""Which model a chat goes on with: the list is opened, another model loaded, the chat stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.downloads import Downloads
from app.inventory import all_places, scan
from app.modellist import ModelScreen
from app.text import one_line
from engine.device import detect
from engine.errors import S2Error
from engine.plan import Wishes

if TYPE_CHECKING:
    from app.chat import ChatApp
    from app.inventory import Item


class Picking:
    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self.downloads = Downloads(lambda: self._folder, app.notice)

    async def open(self, words: str = "") -> None:
        """The list of models, those that `words` describe at first."""
        app = self._app

        async def chosen(item: Item | None) -> None:
            if item is not None:
                app.run_worker(self.switch(item), group="models")  # the engine may have to start first

        screen = ModelScreen(self._scan(), self.downloads, app.link.model, self._at_start, words)
        await app.push_screen(screen, chosen)

    async def switch(self, item: Item) -> None:
        app = self._app
        if item.path == app.link.model:
            app.hint(f"{one_line(item.name, 60)} is the one that answers already.")
            return
        if app.is_answering:
            app.hint("An answer is being written. Esc stops it.")
            return
        try:
            await app.link.switch(item.path)
        except S2Error as error:
            app.notice(error.line())
        else:
            app.notice(f"From now on {one_line(item.name, 100)} answers here")

    @property
    def _folder(self) -> Path:
        return self._app.adjusting.settings.downloads or self._app.paths.models

    def _scan(self) -> partial[Iterator[Item]]:
        """All that is decided here and now, for a thread that finds the models later."""
        load = self._app.options.load
        device = detect()
        # The loaded model makes room for the next.
        device = replace(device, available_bytes=device.available_bytes + self._app.link.memory_bytes)
        wishes = Wishes(n_ctx=load.n_ctx, cache_type=load.cache_type, budget=load.budget)
        return partial(scan, all_places(self._folder, self._app.adjusting.settings.folders), device, wishes)

    def _at_start(self, item: Item) -> str:
        """Keeps `item` for every start; what came of it."""
        problem = self._app.adjusting.keep("models.start", str(item.path))
        return problem or f"{one_line(item.name, 60)} from now on at every start"
