"""Keeps the interface connected to an engine, wherever it is: follows its state, comes back to it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from app.streams import closing
from engine.errors import EngineUnavailable, S2Error
from engine.together import within

if TYPE_CHECKING:
    from pathlib import Path

    from engine.client import EngineClient
    from engine.messages import ModelCard, Snapshot
    from engine.remote.offer import Offer


class Listener(Protocol):
    """What the link reports; all calls come on the event loop."""

    def engine_state(self, snapshot: Snapshot) -> None: ...

    def engine_waiting(self, words: str) -> None:
        """The engine is being started, or will be."""

    def engine_problem(self, error: S2Error) -> None:
        """Something the user has to know; the chat goes on."""

    def engine_careful(self) -> None:
        """It died twice: the next start asks for less, and so should the next request."""


class Source(Protocol):
    """Where engines come from. `opening`: what is said while one is opened.

    `retry_s`: after a failure it is opened again so many seconds later, None for with the next request.
    """

    @property
    def opening(self) -> str: ...

    @property
    def retry_s(self) -> float | None: ...

    @property
    def offer(self) -> Offer: ...

    @property
    def model(self) -> Path | str: ...

    @property
    def pid(self) -> int | None: ...

    async def open(self) -> EngineClient:
        """A client of an engine that answers. Raises S2Error."""

    async def prepare(self, client: EngineClient, listener: Listener) -> None:
        """What the engine needs before the first request."""

    async def switch(self, client: EngineClient, model: Path | str) -> bool:
        """Goes on with another model; False when it was the one that answers."""

    async def ended(self, error: EngineUnavailable | None, last: Snapshot | None, listener: Listener) -> None:
        """After a connection's end: returns when the next may be opened, raises S2Error to rest."""


class EngineLink:
    """`run` is the connection's life; `client` is what a request waits for."""

    def __init__(self, source: Source, listener: Listener) -> None:
        self._source = source
        self._listener = listener
        self._client: asyncio.Future[EngineClient] = asyncio.get_running_loop().create_future()
        self._wanted = asyncio.Event()
        self._last: Snapshot | None = None  # of the loaded model
        self._retries = False  # what keeps it away may pass by itself
        self._said = ""  # the problem that keeps it away; said once, and again to who asks
        self.problem: S2Error | None = None  # what the listener was told last
        self.model_failed = False  # the engine is there, but has no model to answer with

    async def client(self) -> EngineClient:
        """The connection, once the engine answers. Opens one that was left."""
        if not self._wanted.is_set():
            self._said = ""
            self._want()
        return await asyncio.shield(self._client)

    def again(self) -> None:
        """Opens a connection now, if there is none."""
        self._said = ""
        if not self._wanted.is_set():
            self._want()

    def _want(self) -> None:
        self._client = asyncio.get_running_loop().create_future()
        self._wanted.set()

    @property
    def offer(self) -> Offer:
        """What the engine can do."""
        return self._source.offer

    @property
    def model(self) -> Path | str:
        """The model that answers, or will."""
        return self._source.model

    @property
    def pid(self) -> int | None:
        """The engine's process on this machine; None for one elsewhere, or while there is none."""
        return self._source.pid

    @property
    def card(self) -> ModelCard | None:
        """What the engine said of the model it loaded last."""
        return self._last.model if self._last is not None else None

    @property
    def memory_bytes(self) -> int:
        """What the engine takes now."""
        return self._last.rss_bytes if self._last is not None else 0

    async def switch(self, model: Path | str) -> bool:
        """Goes on with another model, or with the same where another file has its name.

        False when it is the one that answers. Raises the S2Error that says why not.
        """
        return await self._source.switch(await self.client(), model)

    async def run(self) -> None:
        self._wanted.set()
        while True:
            await self._until_wanted()
            try:
                await self._live_once()
            except S2Error as error:
                self._rest(error)

    async def _until_wanted(self) -> None:
        try:
            await within(self._source.retry_s if self._retries else None, self._wanted.wait())
        except TimeoutError:
            self._want()

    def _rest(self, error: S2Error) -> None:
        """Stays away from the engine until the next request, or for a while."""
        self._wanted.clear()
        self._retries = isinstance(error, EngineUnavailable)
        self.problem = error
        if not self._client.done():
            self._client.set_exception(error)
            self._client.exception()  # nobody may be waiting, which is fine
        if error.line() != self._said:
            self._said = error.line()
            self._listener.engine_problem(error)

    async def _live_once(self) -> None:
        """One connection from its start to its end."""
        if not self._said:
            self._listener.engine_waiting(self._source.opening)
        ended: EngineUnavailable | None = None
        async with await self._source.open() as client:
            try:
                await self._source.prepare(client, self._listener)
                if not self._client.done():
                    self._client.set_result(client)
                async with closing(client.telemetry()) as snapshots:
                    async for snapshot in snapshots:
                        self._said = ""
                        self.model_failed = snapshot.state == "error"
                        self._last = snapshot if snapshot.model else self._last
                        self._listener.engine_state(snapshot)
            except EngineUnavailable as error:
                ended = error
            finally:
                if self._client.done():
                    self._client = asyncio.get_running_loop().create_future()
        await self._source.ended(ended, self._last, self._listener)
