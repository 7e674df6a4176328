"""The engine as other programs use it: asynchronous calls and event streams, over whichever transport."""

from __future__ import annotations

import uuid
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engine.messages import (
    READ_TIMEOUT_S,
    ChatChunk,
    Handshake,
    Listening,
    Settings,
    Snapshot,
    settings_from_json,
)
from engine.remote.offer import LOCAL, Offer
from engine.transport import Patience, SocketTransport, Transport, plain_line

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from types import TracebackType

T = TypeVar("T")


#: Streams carry all that the engine has to say about a request.
_EVERYTHING = {"stream": True, "return_progress": True, "return_tokens": True, "timings_per_token": True}

#: Over a network: a person waits for it, and to leave the stream ends the request as well.
_CANCEL_S = 2.0


class EngineClient:
    """One user of an engine, here or elsewhere. It stays while a `telemetry` stream or a `chat` is open.

    Every call raises the `S2Error` the engine answered with, and `EngineUnavailable` when the engine
    cannot be reached, closes the connection early, or gives no sign of life for 15 s.
    """

    def __init__(self, place: Path | Transport, offer: Offer = LOCAL) -> None:
        self.client_id = uuid.uuid4().hex
        self.offer = offer
        self._cancel_s = _CANCEL_S if offer.is_remote else READ_TIMEOUT_S
        self._transport = SocketTransport(place) if isinstance(place, Path) else place
        if offer.is_ours:
            self._transport.introduce(self.client_id)

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.close()

    async def handshake(self) -> Handshake:
        return self._understood(Handshake.from_json, await self._call("GET", "/handshake"))

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
        cap: int | None = None,
        resident_only: bool | None = None,
        prefetch: bool | None = None,
    ) -> bool:
        """Asks for a model and returns at once; `telemetry` shows the progress and a failure.

        False when it is there already, read from the file as it is now.

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
            "cap": cap,
            "resident_only": resident_only,
            "prefetch": prefetch,
        }
        body = {name: value for name, value in wishes.items() if value is not None}
        answer = await self._call("POST", "/load", {"model": str(model.expanduser().absolute()), **body})
        return answer.get("state") == "loading"

    def chat(
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
        return self._events("POST", "/v1/chat/completions", ChatChunk.from_json, body)

    def complete(
        self, prompt: str, *, options: Mapping[str, Any] | None = None, request_id: str | None = None
    ) -> AsyncGenerator[ChatChunk, None]:
        """Like `chat`, for a raw prompt that is continued as it is."""
        body = {**(options or {}), **_EVERYTHING, "prompt": prompt, "request_id": request_id}
        return self._events("POST", "/v1/completions", ChatChunk.from_json, body)

    async def count(self, messages: Sequence[Mapping[str, str]]) -> int:
        """Tokens of the prompt that asks for the next answer in `messages`, exactly.

        Raises ContextFull when it is clear without counting that they do not fit.
        """
        answer = await self._call("POST", "/count", {"messages": list(messages)})
        return self._understood(lambda data: int(data["tokens"]), answer)

    async def count_text(self, text: str) -> int:
        """Tokens of `text` alone. Raises like `count`."""
        answer = await self._call("POST", "/count", {"prompt": text})
        return self._understood(lambda data: int(data["tokens"]), answer)

    async def cancel(self, request_id: str) -> bool:
        """Stops that request, also while it waits in the queue. False when it is unknown or over."""
        answer = await self._call("POST", "/cancel", {"request_id": request_id}, timeout_s=self._cancel_s)
        return bool(answer.get("cancelled"))

    async def watch(self, request_id: str, on: bool) -> bool:
        """Has that request show its blocks from now on, or no longer; `return_blocks` asks for it from the
        beginning. False when it is unknown or over."""
        answer = await self._call("POST", "/watch", {"request_id": request_id, "blocks": on})
        return bool(answer["watched"])

    async def settings(self, **changes: str | int) -> Settings:
        """The defaults of later requests, after `changes` to some of them."""
        answer = await self._call("POST" if changes else "GET", "/settings", changes or None)
        return self._understood(settings_from_json, answer)

    async def change_budget(self, budget: int | str) -> str:
        """Another budget for the engine from now on, written as in `load`; what it means, in words."""
        answer = await self._call("POST", "/budget", {"budget": budget})
        return str(answer.get("notice", ""))

    def telemetry(self) -> AsyncGenerator[Snapshot, None]:
        """The engine's state now and after each change, at most four times a second, until it leaves."""
        return self._events("GET", "/telemetry", Snapshot.from_json)

    def listen(self, port: int = 0, origins: Sequence[str] = ()) -> AsyncGenerator[Listening, None]:
        """Opens a TCP port on loopback, 0 for any, until the iteration is left; the one item says which.

        Web pages of `origins` may use it too. Raises Busy where the port is taken.
        """
        body = {"port": port, "origins": list(origins)}
        return self._events("POST", "/listen", lambda data: Listening(**data), body)

    async def shutdown(self) -> None:
        """Asks the engine to leave, whoever else uses it."""
        await self._call("POST", "/shutdown")

    async def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> dict[str, Any]:
        return await self._transport.call(method, path, body, timeout_s=timeout_s)

    async def _events(
        self,
        method: str,
        path: str,
        read: Callable[[dict[str, Any]], T],
        body: Mapping[str, Any] | None = None,
        patience: Patience | None = None,
    ) -> AsyncGenerator[T, None]:
        """What `read` makes of each event."""
        async with aclosing(self._transport.events(method, path, body, patience)) as events:
            async for data in events:
                yield self._understood(read, data)

    def _understood(self, read: Callable[[dict[str, Any]], T], data: dict[str, Any]) -> T:
        """What `read` makes of `data`, which may come from anywhere."""
        try:
            return read(data)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise self._transport.odd(plain_line(repr(error), 80)) from None
