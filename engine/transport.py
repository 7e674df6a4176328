"""HTTP between a client and what answers it: calls, event streams, and what to say when these fail."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from engine.client_errors import error_from_json, error_from_reply
from engine.errors import BadRequest, EngineUnavailable, S2Error
from engine.messages import CLIENT_HEADER, READ_TIMEOUT_S
from engine.sse import Events
from engine.together import within

if TYPE_CHECKING:
    from pathlib import Path

_CONNECT_S = 10.0
_WRITE_S = 30.0
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_MOST_BYTES = 64 << 20  # of an answer that is no stream


@dataclass(slots=True)
class Patience:
    """Seconds until silence counts as the end; may be changed while a stream is read."""

    seconds: float = READ_TIMEOUT_S


class Garbled(EngineUnavailable):
    """What answered is not what was meant to be there, or broke."""


class Transport(ABC):
    """One place that answers. `name` is what messages call it.

    Every call raises the S2Error that the other end answered with, and EngineUnavailable when it cannot be
    reached, closes the connection early, or gives no sign of life for too long.
    """

    name = "the engine"

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def close(self) -> None:
        await self._http.aclose()

    def introduce(self, client_id: str) -> None:
        """Names the client in every request from now on."""
        self._http.headers[CLIENT_HEADER] = client_id

    @abstractmethod
    def unreachable(self, error: httpx.RequestError) -> EngineUnavailable:
        """What `error` means to a person."""

    def refusal(self, status: int, headers: Mapping[str, str], content: bytes) -> S2Error:  # noqa: ARG002
        """The error that an answer which is none stands for."""
        return error_from_reply(content)

    def told(self, data: Any) -> S2Error:
        """The error in an event of a stream."""
        return error_from_json(data)

    def odd(self, what: str) -> S2Error:
        """The other end said something that means nothing here."""
        return Garbled(f"{self.name} sent something that is no answer: {what}")

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> dict[str, Any]:
        """The JSON object it answers with."""
        try:
            async with self._http.stream(
                method, path, content=_encoded(body), timeout=_timeout(timeout_s)
            ) as reply:
                return self._object(await self._whole(reply))
        except httpx.RequestError as error:
            raise self.unreachable(error) from error

    async def events(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        patience: Patience | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The data of each event until [DONE]; an `error` object is raised. Leaving closes the connection.

        Raises EngineUnavailable when the stream ends without [DONE]. A server that answers with one object
        where a stream was asked for gets it passed on.
        """
        patience = patience or Patience()
        try:
            async with self._http.stream(
                method, path, content=_encoded(body), timeout=_timeout(patience.seconds)
            ) as reply:
                if reply.status_code >= 300 or not _is_stream(reply):
                    yield self._event(await self._whole(reply))
                    return
                async with aclosing(self._data(reply, patience)) as found:
                    async for data in found:
                        if data == "[DONE]":
                            return
                        yield self._event(data)
        except httpx.RequestError as error:
            raise self.unreachable(error) from error
        raise EngineUnavailable(f"{self.name} closed the connection")

    async def _data(self, reply: httpx.Response, patience: Patience) -> AsyncGenerator[str, None]:
        events = Events()
        try:
            async with aclosing(reply.aiter_bytes()) as pieces:  # type: ignore[type-var]
                while (piece := await within(patience.seconds, anext(pieces, None))) is not None:
                    for data in events.feed(piece):
                        yield data
            for data in events.close():
                yield data
        except ValueError as error:
            raise self.odd(str(error)) from None
        except TimeoutError as error:
            raise self.unreachable(httpx.ReadTimeout(str(error))) from None

    def _event(self, text: bytes | str) -> dict[str, Any]:
        data = self._object(text)
        if data.get("error") and "state" not in data:
            raise self.told(data)
        return data

    async def _whole(self, reply: httpx.Response) -> bytes:
        """What an answer says that is no stream. Raises the error it stands for."""
        content = bytearray()
        async for piece in reply.aiter_bytes():
            content += piece
            if len(content) > _MOST_BYTES:
                raise self.odd("more than an answer can have")
        if reply.status_code >= 300:
            raise self.refusal(reply.status_code, reply.headers, bytes(content))
        return bytes(content)

    def _object(self, content: bytes | str) -> dict[str, Any]:
        try:
            value = json.loads(content)
        except (ValueError, RecursionError):
            raise self.odd(_shown(content)) from None
        if not isinstance(value, dict):
            raise self.odd(_shown(content))
        return value


class SocketTransport(Transport):
    """The engine of this machine."""

    def __init__(self, socket: Path) -> None:
        super().__init__(
            httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(
                    uds=str(socket),
                    verify=False,
                    # A local connection costs nothing, and one that is kept may be closed under a request.
                    limits=httpx.Limits(max_keepalive_connections=0),
                ),
                base_url="http://engine",
                trust_env=False,
            )
        )

    def unreachable(self, error: httpx.RequestError) -> EngineUnavailable:
        if isinstance(error, httpx.ConnectError):
            return EngineUnavailable("no engine is running")
        if isinstance(error, httpx.TimeoutException):
            return EngineUnavailable(f"the engine gave no sign of life for {READ_TIMEOUT_S:g} s")
        return EngineUnavailable("the engine closed the connection")


def _timeout(seconds: float) -> httpx.Timeout:
    return httpx.Timeout(connect=_CONNECT_S, read=seconds, write=_WRITE_S, pool=None)


def _is_stream(reply: httpx.Response) -> bool:
    return str(reply.headers.get("content-type", "")).lower().startswith("text/event-stream")


def _shown(content: bytes | str) -> str:
    """The beginning of it, without anything a terminal could take for a command."""
    text = content.decode("utf-8", "replace") if isinstance(content, bytes) else content
    if text.lstrip()[:1] == "<":
        return "a web page"
    return plain_line(text, 80) or "nothing"


def plain_line(text: str, limit: int = 400) -> str:
    """What somebody else wrote as one line of printable characters."""
    text = _ESCAPE.sub("", text[: 8 * limit])
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _encoded(body: Mapping[str, Any] | None) -> bytes | None:
    try:
        return None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # NaN, or half a surrogate pair
        raise BadRequest(f"the request cannot be written as JSON: {error}") from None
