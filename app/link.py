"""Keeps the interface connected to an engine: starts it, loads the model, follows its state, restarts it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from app.streams import closing
from engine.client import EngineClient
from engine.errors import Busy, EngineUnavailable, S2Error
from engine.supervisor import Crash, Supervisor

if TYPE_CHECKING:
    from pathlib import Path

    from app.options import Load
    from engine.messages import Snapshot
    from engine.paths import Paths

_RECONNECT_S = 0.5
_SMALLEST_CONTEXT = 512


class Listener(Protocol):
    """What the link reports; all calls come on the event loop."""

    def engine_state(self, snapshot: Snapshot) -> None: ...

    def engine_waiting(self, words: str) -> None:
        """The engine is being started, or will be."""

    def engine_problem(self, error: S2Error) -> None:
        """Something the user has to know; the chat goes on."""

    def engine_careful(self) -> None:
        """It died twice: the next start asks for less, and so should the next request."""


class EngineLink:
    """`run` is the connection's life; `client` is what a request waits for."""

    def __init__(self, paths: Paths, load: Load, listener: Listener) -> None:
        self._wishes = self._load = load
        self._listener = listener
        self._supervisor = Supervisor(paths)
        self._client: asyncio.Future[EngineClient] = asyncio.get_running_loop().create_future()
        self._wanted = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine-start")
        self._last: Snapshot | None = None  # of the loaded model
        self.pid: int | None = None  # of the engine, while one is connected
        self.model_failed = False  # the engine is there, but has no model to answer with

    async def client(self) -> EngineClient:
        """The connection, once the engine answers. Starts an engine that was left stopped."""
        if not self._wanted.is_set():
            self._client = asyncio.get_running_loop().create_future()
            self._wanted.set()
        return await asyncio.shield(self._client)

    @property
    def model(self) -> Path:
        """The model that answers, or will."""
        return self._load.model

    @property
    def memory_bytes(self) -> int:
        """What the engine takes now."""
        return self._last.rss_bytes if self._last is not None else 0

    async def switch(self, model: Path) -> None:
        """Loads another model, with the wishes of the first. Raises the S2Error the engine refuses with."""
        load = replace(self._wishes, model=model)
        await self._load_into(await self.client(), load)
        self._load = load

    async def run(self) -> None:
        self._wanted.set()
        while True:
            await self._wanted.wait()
            try:
                await self._live_once()
            except S2Error as error:
                self._rest(error)

    def _rest(self, error: S2Error) -> None:
        """Stays away from the engine until the next request."""
        self._wanted.clear()
        if not self._client.done():
            self._client.set_exception(error)
            self._client.exception()  # nobody may be waiting, which is fine
        self._listener.engine_problem(error)

    async def _live_once(self) -> None:
        """One engine from its start to its end."""
        self._listener.engine_waiting("starting the engine")
        loop = asyncio.get_running_loop()
        handle = await loop.run_in_executor(self._thread, self._supervisor.start)
        async with EngineClient(handle.socket) as client:
            self.pid = handle.hello.pid
            try:
                await self._ask_for_model(client)
                if not self._client.done():
                    self._client.set_result(client)
                async with closing(client.telemetry()) as snapshots:
                    async for snapshot in snapshots:
                        self.model_failed = snapshot.state == "error"
                        self._last = snapshot if snapshot.model else self._last
                        self._listener.engine_state(snapshot)
            except EngineUnavailable:
                pass
            finally:
                self.pid = None
                if self._client.done():
                    self._client = loop.create_future()
        crash = await loop.run_in_executor(self._thread, self._supervisor.crashed)
        if crash is None:
            await asyncio.sleep(_RECONNECT_S)
        else:
            await self._after(crash)

    async def _ask_for_model(self, client: EngineClient) -> None:
        try:
            await self._load_into(client, self._load)
        except Busy as error:
            hint = "this chat goes on with the model that is loaded"
            self._listener.engine_problem(Busy(error.message, hint=hint))

    @staticmethod
    async def _load_into(client: EngineClient, load: Load) -> None:
        await client.load(
            load.model,
            n_ctx=load.n_ctx,
            n_threads=load.n_threads,
            cache_type=load.cache_type,
            budget=load.budget,
        )

    async def _after(self, crash: Crash) -> None:
        if crash.death.expected:
            raise EngineUnavailable(crash.death.cause, hint="it starts again with your next message")
        if crash.retry_after_s is None:
            raise crash.error
        self._listener.engine_problem(crash.error)
        if crash.careful:
            self._load = careful(self._load, self._last)
            self._listener.engine_careful()
        self._listener.engine_waiting(f"starting the engine again in {crash.retry_after_s:.0f} s")
        await asyncio.sleep(crash.retry_after_s)


def careful(load: Load, last: Snapshot | None) -> Load:
    """What to load after crashes: half the context that was there, and a quarter less for experts."""
    n_ctx = last.model.n_ctx if last and last.model else load.n_ctx or 0
    budget = load.budget
    if last and last.budget_bytes and last.slot_bytes:
        budget = last.budget_bytes - last.slot_bytes // 4
    return replace(load, n_ctx=max(_SMALLEST_CONTEXT, n_ctx // 2), budget=budget)
