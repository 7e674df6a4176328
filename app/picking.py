"""Which model a chat goes on with: the list is opened, another model loaded, the chat stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.choice import LineScreen
from app.distant import DistantServer
from app.downloads import Downloads
from app.inventory import all_places, scan
from app.modellist import ModelScreen
from app.servermodels import ServerModelScreen
from app.text import one_line
from app.turns import BUSY
from engine.device import detect
from engine.errors import BadRequest, S2Error
from engine.plan import Wishes
from engine.remote.address import check_key

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
        if app.link.offer.is_remote:
            await self._open_remote(words)
            return

        async def chosen(item: Item | None) -> None:
            if item is not None:
                app.run_worker(self.switch(item), group="models")  # the engine may have to start first

        now = Path(app.link.model)
        screen = ModelScreen(self._scan(), self.downloads, now, self._at_start, words)
        await app.push_screen(screen, chosen)

    async def _open_remote(self, words: str) -> None:
        """The models of the server that answers."""
        app, offer = self._app, self._app.link.offer

        async def chosen(name: str | None) -> None:
            if name is not None:
                app.run_worker(self.ask_for(name), group="models")

        names = offer.models or ((app.board.model,) if app.board.model else ())
        now = str(app.link.model) or app.board.model
        await app.push_screen(
            ServerModelScreen(offer.place, names, now, self._remote_at_start, words), chosen
        )

    async def ask_for(self, name: str) -> None:
        """Has the server's model `name` answer from now on."""
        app = self._app
        if name in (app.link.model, app.board.model):
            self._nothing_new(name)
        else:
            await self._switch(name, name)

    async def _switch(self, model: Path | str, name: str) -> None:
        app = self._app
        if app.is_answering:
            app.hint(BUSY)
            return
        again = model == app.link.model
        try:
            begun = await app.link.switch(model)
        except S2Error as error:
            app.notice(error.line())
            return
        if not begun:
            self._nothing_new(name)
        elif again:
            app.notice(f"{one_line(name, 100)} is another file now and is loaded again")
        else:
            app.notice(f"From now on {one_line(name, 100)} answers here")

    def _nothing_new(self, name: str) -> None:
        self._app.hint(f"{one_line(name, 60)} is the one that answers already.")

    async def ask_key(self, said: str) -> None:
        """Asks for the key that the server wants; it is kept in memory alone."""
        app = self._app

        async def typed(text: str | None) -> None:
            if not text or not text.strip() or not isinstance(app.source, DistantServer):
                return
            try:
                app.source.take_key(check_key(text))
            except BadRequest as error:
                app.notice(error.line())
            else:
                app.link.again()

        words = f"{said}. What you type here is not kept; --key-file names a file that holds it."
        await app.push_screen(LineScreen("Key", said=words, secret=True), typed)

    async def switch(self, item: Item) -> None:
        await self._switch(item.path, item.name)

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

    def _remote_at_start(self, name: str) -> str:
        """Keeps the server's model `name` for every start; what came of it."""
        server = self._app.options.server
        if server is None or self._app.adjusting.settings.get("server.url") != server.root:
            return "set server.url to this server first (F10): it is the one that the next start asks"
        problem = self._app.adjusting.keep("server.model", name)
        return problem or f"{one_line(name, 60)} from now on at every start"
