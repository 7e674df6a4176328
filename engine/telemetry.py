"""The event stream that shows the engine's state: a snapshot at once, then after each change."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.responses import Response

from engine.cards import snapshot
from engine.messages import PING_S
from engine.replies import event
from engine.serving import EVENT_STREAM_START, send_events, while_connected
from engine.together import within

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from engine.state import EngineState

#: Shortest time between two snapshots; what happens meanwhile shows in the next one.
STEP_S = 0.25


class TelemetryResponse(Response):
    """Counts as an attached client while it is open."""

    def __init__(self, state: EngineState, client: str) -> None:
        super().__init__()
        self._state = state
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        wake = asyncio.Event()
        self._state.streams[wake] = self._client
        self._state.touch()
        try:
            await while_connected(receive, self._stream(wake, send))
        finally:
            del self._state.streams[wake]
            self._state.uses += 1
            self._state.touch()

    async def _stream(self, wake: asyncio.Event, send: Send) -> None:
        await send(EVENT_STREAM_START)
        while not self._state.leaving.is_set():
            if wake.is_set():
                wake.clear()
                await send_events(send, event(snapshot(self._state)))
                await asyncio.sleep(STEP_S)
            elif not await _set_within(wake, PING_S):
                await send_events(send, b": ping\n\n")
        await send_events(send, b"data: [DONE]\n\n", last=True)


async def _set_within(wake: asyncio.Event, seconds: float) -> bool:
    try:
        return await within(seconds, wake.wait())
    except TimeoutError:
        return False
