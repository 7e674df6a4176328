"""Serves one generation request: waits for its turn, then streams it or answers as a whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from starlette.responses import Response

from engine.messages import PING_S
from engine.replies import Reply
from engine.serving import EVENT_STREAM_START, answer, error_answer, send_events, while_connected

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from engine.job import GenerateJob
    from engine.state import EngineState

#: A stream's headers wait this long for the first word, so that a refusal gets its own status.
_FIRST_WAIT_S = 1.0

#: Tokens gather this long into one event. Where the decode threads have every core, each wake-up of this
#: thread stops one of them and the others wait at the next barrier: 25 a second cost up to 8 % of tokens/s.
_GATHER_S = 0.1

#: An answer carries its own figures; telemetry repeats them this often, for those who only watch.
_TELL_EVERY_S = 1.0


class JobResponse(Response):
    """The answer to a job. When the client goes, the job is cancelled, wherever it is."""

    def __init__(self, state: EngineState, job: GenerateJob, model: str) -> None:
        super().__init__()
        self._state = state
        self._job = job
        self._reply = Reply(job.call, job.id, model)
        self._told_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if self._job.call.stream:
                await while_connected(receive, self._stream(scope, receive, send))
            else:
                await while_connected(receive, self._whole(scope, receive, send))
        finally:
            self._state.finish(self._job, self._reply.timings)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        while not self._reply.ended:
            await self._take(PING_S)
            await self._job.mailbox.pause(_GATHER_S)
        error = self._reply.error
        response = answer(self._reply.whole()) if error is None else error_answer(error)
        await response(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._take(_FIRST_WAIT_S)
        if self._reply.error is not None:
            await error_answer(self._reply.error)(scope, receive, send)
            return
        await send(EVENT_STREAM_START)
        await send_events(send, self._reply.first_events())
        sent_at = time.monotonic()
        while True:
            events = self._reply.events()
            if not events and time.monotonic() - sent_at >= PING_S:
                events = b": ping\n\n"
            if events:
                sent_at = time.monotonic()
                await send_events(send, events, last=self._reply.ended)
            if self._reply.ended:
                return
            await self._job.mailbox.pause(_GATHER_S)
            await self._take(PING_S)

    async def _take(self, timeout_s: float) -> None:
        self._reply.take(await self._job.mailbox.get(timeout_s))
        if self._reply.timings is not None:
            self._state.timings = self._reply.timings
        now = time.monotonic()
        if self._reply.ended or now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            self._state.touch()
