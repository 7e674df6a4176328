"""This machine's engine as a link's source: started when needed, given its model, judged when it dies."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.client import EngineClient
from engine.errors import Busy, EngineUnavailable
from engine.remote.offer import LOCAL
from engine.supervisor import Supervisor

if TYPE_CHECKING:
    from app.link import Listener
    from app.options import Load
    from engine.messages import Snapshot
    from engine.paths import Paths
    from engine.supervisor import Crash

_RECONNECT_S = 0.5
_SMALLEST_CONTEXT = 512


class LocalEngine:
    """A `Source` of `app.link`."""

    opening = "starting the engine"
    retry_s = None  # an engine that cannot be started is not tried again unasked
    offer = LOCAL

    def __init__(self, paths: Paths, load: Load) -> None:
        self._wishes = self._load = load
        self._supervisor = Supervisor(paths)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine-start")
        self.pid: int | None = None  # of the engine, while one is connected

    @property
    def model(self) -> Path:
        """The model that answers, or will."""
        return self._load.model

    async def open(self) -> EngineClient:
        loop = asyncio.get_running_loop()
        handle = await loop.run_in_executor(self._thread, self._supervisor.start)
        self.pid = handle.hello.pid
        return EngineClient(handle.socket)

    async def prepare(self, client: EngineClient, listener: Listener) -> None:
        try:
            await _load_into(client, self._load)
        except Busy as error:
            hint = "this chat goes on with the model that is loaded"
            listener.engine_problem(Busy(error.message, hint=hint))

    async def switch(self, client: EngineClient, model: Path | str) -> bool:
        """Loads another model, with the wishes of the first. Raises the S2Error the engine refuses with."""
        same = Path(model) == self._load.model
        load = self._load if same else replace(self._wishes, model=Path(model))
        begun = await _load_into(client, load)
        self._load = load
        return begun

    async def ended(
        self,
        error: EngineUnavailable | None,  # noqa: ARG002 -- how it died says more
        last: Snapshot | None,
        listener: Listener,
    ) -> None:
        self.pid = None
        loop = asyncio.get_running_loop()
        crash = await loop.run_in_executor(self._thread, self._supervisor.crashed)
        if crash is None:
            await asyncio.sleep(_RECONNECT_S)
        else:
            await self._after(crash, last, listener)

    async def _after(self, crash: Crash, last: Snapshot | None, listener: Listener) -> None:
        if crash.death.expected:
            raise EngineUnavailable(crash.death.cause, hint="it starts again with your next message")
        if crash.retry_after_s is None:
            raise crash.error
        listener.engine_problem(crash.error)
        if crash.careful:
            self._load = careful(self._load, last)
            listener.engine_careful()
        listener.engine_waiting(f"starting the engine again in {crash.retry_after_s:.0f} s")
        await asyncio.sleep(crash.retry_after_s)


async def _load_into(client: EngineClient, load: Load) -> bool:
    return await client.load(
        load.model,
        n_ctx=load.n_ctx,
        n_threads=load.n_threads,
        cache_type=load.cache_type,
        budget=load.budget,
    )


def careful(load: Load, last: Snapshot | None) -> Load:
    """What to load after crashes: half the context that was there, and a quarter less for experts."""
    n_ctx = last.model.n_ctx if last and last.model else load.n_ctx or 0
    budget = load.budget
    if last and last.budget_bytes and last.slot_bytes:
        budget = last.budget_bytes - last.slot_bytes // 4
    return replace(load, n_ctx=max(_SMALLEST_CONTEXT, n_ctx // 2), budget=budget)
