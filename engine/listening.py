"""A TCP port on loopback, open for as long as the client that asked for it stays."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from starlette.responses import Response

from engine.errors import BadRequest, Busy
from engine.fields import Fields
from engine.guard import Guard
from engine.http import Server
from engine.messages import PING_S
from engine.replies import event
from engine.serving import EVENT_STREAM_START, send_events, while_connected
from engine.token import read_token

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from starlette.types import ASGIApp, Receive, Scope, Send

    from engine.state import EngineState

_LOOPBACK = "127.0.0.1"
_BACKLOG = 128


class ListenResponse(Response):
    """Opens the port, says where, and gives signs of life. Raises what is wrong before the stream begins."""

    def __init__(
        self, state: EngineState, app: ASGIApp, token_file: Path, body: Mapping[str, Any], client: str
    ) -> None:
        super().__init__()
        port, origins = _parse(body)
        token = read_token(token_file)
        self._state, self._client, self._token_file = state, client, token_file
        self._socket = _open(port)
        self._port = int(self._socket.getsockname()[1])
        self._server = Server(Guard(app, token, self._port, origins))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        user = asyncio.Event()
        self._state.streams[user] = self._client
        serving = asyncio.create_task(self._server.serve([self._socket]))
        try:
            await while_connected(receive, self._stream(serving, send))
        finally:
            del self._state.streams[user]
            self._state.uses += 1
            self._state.touch()
            self._server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            self._socket.close()

    async def _stream(self, serving: asyncio.Task[None], send: Send) -> None:
        where = {"host": _LOOPBACK, "port": self._port, "token_file": str(self._token_file)}
        await send(EVENT_STREAM_START)
        await send_events(send, event(where))
        leaving = asyncio.create_task(self._state.leaving.wait())
        try:
            while not (serving.done() or leaving.done()):
                await asyncio.wait((serving, leaving), timeout=PING_S, return_when=asyncio.FIRST_COMPLETED)
                await send_events(send, b": ping\n\n")
        finally:
            leaving.cancel()
        await send_events(send, b"data: [DONE]\n\n", last=True)


def _parse(body: Mapping[str, Any]) -> tuple[int, list[str]]:
    fields = Fields(body)
    port = fields.integer("port") or 0
    if not 0 <= port <= 65535:
        raise fields.wrong("port", "from 0, for any, to 65535")
    origins = body.get("origins") or []
    if not isinstance(origins, list) or not all(isinstance(origin, str) for origin in origins):
        raise fields.wrong("origins", "a list of strings")
    for origin in origins:
        scheme, _, host = origin.partition("://")
        if scheme not in ("http", "https") or not host or "/" in host or "*" in origin:
            raise BadRequest(f"{origin!r} is no origin of a web page", hint="as in http://localhost:3000")
    return port, [origin.lower() for origin in origins]


def _open(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_LOOPBACK, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise Busy(f"port {port} cannot be opened: {error.strerror}", hint="choose another --port") from None
    listener.setblocking(False)
    return listener
