"""The life of `s2chat serve`: an engine with a model, watched, started again when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Any

from app.flags import fields_for, model_of
from app.streams import closing
from app.text import clean, one_line
from engine.client import EngineClient
from engine.errors import EngineUnavailable, ModelError
from engine.paths import Paths
from engine.request import SPECULATION_FIELDS
from engine.supervisor import Supervisor

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from engine.messages import Snapshot

_RECONNECT_S = 0.5


class Service:
    """`arguments`: those of `app.serve`."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._paths = Paths.default()
        self._supervisor = Supervisor(self._paths)
        self._model: Path = model_of(arguments)
        self._wishes: dict[str, Any] = fields_for("load", arguments)
        self._wishes |= {
            name: value for name in SPECULATION_FIELDS if (value := getattr(arguments, name)) is not None
        }
        self._port: int | None = arguments.port
        self._origins: list[str] = arguments.origin

    async def run(self) -> None:
        me, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert me is not None
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, me.cancel)
        while True:
            handle = await asyncio.to_thread(self._supervisor.start)
            with contextlib.suppress(EngineUnavailable):  # what became of the engine is found out below
                async with EngineClient(handle.socket) as client:
                    await client.load(self._model, **self._wishes)
                    await self._attend(client)
            crash = await asyncio.to_thread(self._supervisor.crashed)
            if crash is None:
                await asyncio.sleep(_RECONNECT_S)
            elif crash.death.expected:
                raise EngineUnavailable(crash.death.cause)
            elif crash.retry_after_s is None:
                raise crash.error
            else:
                print(f"s2chat: {clean(crash.error.line())}", file=sys.stderr, flush=True)
                await asyncio.sleep(crash.retry_after_s)

    async def _attend(self, client: EngineClient) -> None:
        """As long as this engine lives."""
        tasks = [asyncio.create_task(self._watch(client))]
        if self._port is not None:
            tasks.append(asyncio.create_task(self._listen(client, self._port)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _watch(self, client: EngineClient) -> None:
        told: Snapshot | None = None
        async with closing(client.telemetry()) as snapshots:
            async for snapshot in snapshots:
                if snapshot.state == "error":
                    raise ModelError(snapshot.error or "no model is loaded")
                if snapshot.model is not None and told is None:
                    told = snapshot
                    print(
                        f"model   {one_line(snapshot.model.name)}, {snapshot.model.n_ctx} tokens", flush=True
                    )
                    print(f"socket  {self._paths.socket}", flush=True)

    async def _listen(self, client: EngineClient, port: int) -> None:
        async with closing(client.listen(port, self._origins)) as places:
            async for place in places:
                self._port = place.port  # an engine that is started again takes the same one
                print(f"port    http://{place.host}:{place.port}/v1", flush=True)
                print(f"token   {place.token_file}", flush=True)
