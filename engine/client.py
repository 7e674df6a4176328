"""The engine as other programs use it: asynchronous calls and event streams over its Unix socket."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any, NoReturn

import httpx

from engine.client_errors import error_from_json, error_from_reply
from engine.errors import BadRequest, EngineUnavailable
from engine.messages import (
    CLIENT_HEADER,
    READ_TIMEOUT_S,
    ChatChunk,
    Handshake,
    Listening,
    Settings,
    Snapshot,
    settings_from_json,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType


#: Streams carry all that the engine has to say about a request.
_EVERYTHING = {"stream": True, "return_progress": True, "return_tokens": True, "timings_per_token": True}


class EngineClient:
    """One user of the engine. The engine stays while a `telemetry` stream or a `chat` is open.

    Every call raises the `S2Error` the engine answered with, and `EngineUnavailable` when the engine
    cannot be reached, closes the connection early, or gives no sign of life for 15 s.
    """

    def __init__(self, socket: Path) -> None:
        self.client_id = uuid.uuid4().hex
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(
                uds=str(socket),
                verify=False,
                # A local connection costs nothing, and one that is kept may be closed under a request.
                limits=httpx.Limits(max_keepalive_connections=0),
            ),
            base_url="http://engine",
            headers={CLIENT_HEADER: self.client_id},
            timeout=httpx.Timeout(READ_TIMEOUT_S, pool=None),
            trust_env=False,
        )

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def handshake(self) -> Handshake:
        return Handshake.from_json(await self._call("GET", "/handshake"))

    async def load(
        self,
        model: Path,
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        cache_type: str | None = None,
        budget: int | str | None = None,
        mode: str | None = None,
        draft_experts: int | None = None,
        draft_length: int | None = None,
    ) -> None:
        """Asks for a model and returns at once; `telemetry` shows the progress and a failure.

        `budget`: bytes, "25%" of the model's files, or "max"; the whole engine process keeps within it.
        """
        wishes = {
            "n_ctx": n_ctx,
            "n_threads": n_threads,
            "cache_type": cache_type,
            "budget": budget,
            "mode": mode,
            "draft_experts": draft_experts,
            "draft_length": draft_length,
        }
        body = {name: value for name, value in wishes.items() if value is not None}
        await self._call("POST", "/load", {"model": str(model.expanduser().absolute()), **body})

    async def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        options: Mapping[str, Any] | None = None,
        request_id: str | None = None,
    ) -> AsyncGenerator[ChatChunk, None]:
        """Streams the answer to `messages`, each `{"role": …, "content": …}`.

        `options` are the request's other fields (`temperature`, `max_tokens`, `seed`, `stop`, `mode`, …).
        Leaving the iteration early stops the engine's work, and so does `cancel(request_id)`, after which
        the stream ends by itself with `finish == "cancel"`.
        """
        body = {**(options or {}), **_EVERYTHING, "messages": list(messages), "request_id": request_id}
        async for data in self._events("POST", "/v1/chat/completions", body):
            yield ChatChunk.from_json(data)

    async def complete(
        self, prompt: str, *, options: Mapping[str, Any] | None = None, request_id: str | None = None
    ) -> AsyncGenerator[ChatChunk, None]:
        """Like `chat`, for a raw prompt that is continued as it is."""
        body = {**(options or {}), **_EVERYTHING, "prompt": prompt, "request_id": request_id}
        async for data in self._events("POST", "/v1/completions", body):
            yield ChatChunk.from_json(data)

    async def count(self, messages: Sequence[Mapping[str, str]]) -> int:
        """Tokens of the prompt that asks for the next answer in `messages`, exactly.

        Raises ContextFull when it is clear without counting that they do not fit.
        """
        answer = await self._call("POST", "/count", {"messages": list(messages)})
        return int(answer["tokens"])

    async def count_text(self, text: str) -> int:
        """Tokens of `text` alone. Raises like `count`."""
        answer = await self._call("POST", "/count", {"prompt": text})
        return int(answer["tokens"])

    async def cancel(self, request_id: str) -> bool:
        """Stops that request, also while it waits in the queue. False when it is unknown or over."""
        answer = await self._call("POST", "/cancel", {"request_id": request_id})
        return bool(answer["cancelled"])

    async def watch(self, request_id: str, on: bool) -> bool:
        """Has that request show its blocks from now on, or no longer; `return_blocks` asks for it from the
        beginning. False when it is unknown or over."""
        answer = await self._call("POST", "/watch", {"request_id": request_id, "blocks": on})
        return bool(answer["watched"])

    async def settings(self, **changes: str | int) -> Settings:
        """The defaults of later requests, after `changes` to some of them."""
        answer = await self._call("POST" if changes else "GET", "/settings", changes or None)
        return settings_from_json(answer)

    async def change_budget(self, budget: int | str) -> str:
        """Another budget for the engine from now on, written as in `load`; what it means, in words."""
        answer = await self._call("POST", "/budget", {"budget": budget})
        return str(answer["notice"])

    async def telemetry(self) -> AsyncGenerator[Snapshot, None]:
        """The engine's state now and after each change, at most four times a second, until it leaves."""
        async for data in self._events("GET", "/telemetry"):
            yield Snapshot.from_json(data)

    async def listen(self, port: int = 0, origins: Sequence[str] = ()) -> AsyncGenerator[Listening, None]:
        """Opens a TCP port on loopback, 0 for any, until the iteration is left; the one item says which.

        Web pages of `origins` may use it too. Raises Busy where the port is taken.
        """
        async for data in self._events("POST", "/listen", {"port": port, "origins": list(origins)}):
            yield Listening(**data)

    async def shutdown(self) -> None:
        """Asks the engine to leave, whoever else uses it."""
        await self._call("POST", "/shutdown")

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        try:
            reply = await self._http.request(method, path, content=_encoded(body))
        except httpx.TransportError as error:
            _unreachable(error)
        if reply.is_error:
            raise error_from_reply(reply.content)
        answer: dict[str, Any] = reply.json()
        return answer

    async def _events(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The data of each server-sent event; comments are skipped, an `error` object is raised."""
        ended = False
        try:
            async with self._http.stream(method, path, content=_encoded(body)) as reply:
                if reply.is_error:
                    raise error_from_reply(await reply.aread())
                async for line in reply.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    if line == "data: [DONE]":
                        ended = True
                        continue
                    data: dict[str, Any] = json.loads(line[5:])
                    if "error" in data and "state" not in data:
                        raise error_from_json(data)
                    yield data
        except httpx.TransportError as error:
            _unreachable(error)
        if not ended:
            raise EngineUnavailable("the engine closed the connection")


def _encoded(body: Mapping[str, Any] | None) -> bytes | None:
    try:
        return None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:  # NaN, or half a surrogate pair
        raise BadRequest(f"the request cannot be written as JSON: {error}") from None


def _unreachable(error: httpx.TransportError) -> NoReturn:
    if isinstance(error, httpx.ConnectError):
        raise EngineUnavailable("no engine is running") from error
    if isinstance(error, httpx.TimeoutException):
        raise EngineUnavailable(f"the engine gave no sign of life for {READ_TIMEOUT_S:g} s") from error
    raise EngineUnavailable("the engine closed the connection") from error
