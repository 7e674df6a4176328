"""A client of servers that speak plain OpenAI: chat and models, nothing else of ours."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from engine.client import EngineClient
from engine.errors import BadRequest, EngineUnavailable, S2Error
from engine.messages import ChatChunk, ModelCard, Settings, Snapshot, progress_from_json, timings_from_json
from engine.messages import whole_text as text_of
from engine.remote.network import NetworkTransport
from engine.remote.offer import Offer
from engine.transport import Patience

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from pathlib import Path
    from typing import NoReturn

    from engine.events import FinishReason, Timings

T = TypeVar("T")

#: A long prompt is read in silence. Between two pieces of an answer there is no reason for one.
FIRST_WAIT_S = 600.0
NEXT_WAIT_S = 60.0
END_WAIT_S = 5.0

_FINISH: dict[str, FinishReason] = {"length": "max_tokens"}


class PlainClient(EngineClient):
    """`model` is the one that is asked for; it may be changed between requests."""

    def __init__(self, transport: NetworkTransport, offer: Offer, model: str, prefix: str = "/v1") -> None:
        super().__init__(transport, offer)
        self.model = model
        self.first_wait_s, self.next_wait_s = FIRST_WAIT_S, NEXT_WAIT_S
        self._prefix = prefix
        self._changed = asyncio.Event()
        self._lost: EngineUnavailable | None = None
        self._habits: dict[str, str] = {}  # fields this server knows by another name, "" for not at all

    def choose(self, model: str) -> None:
        self.model = model
        self._changed.set()

    async def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        options: Mapping[str, Any] | None = None,
        request_id: str | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[ChatChunk, None]:
        body = self._body(options) | {"messages": list(messages)}
        async with aclosing(self._answer(f"{self._prefix}/chat/completions", body)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def complete(
        self,
        prompt: str,
        *,
        options: Mapping[str, Any] | None = None,
        request_id: str | None = None,  # noqa: ARG002
    ) -> AsyncGenerator[ChatChunk, None]:
        body = self._body(options) | {"prompt": prompt}
        async with aclosing(self._answer(f"{self._prefix}/completions", body)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def telemetry(self) -> AsyncGenerator[Snapshot, None]:
        """What can be known without being told: the model. Ends when a request finds the server gone."""
        while self._lost is None:
            self._changed.clear()
            yield self._snapshot()
            await self._changed.wait()
        raise self._lost

    async def cancel(self, request_id: str) -> bool:  # noqa: ARG002
        """There is no such call; leaving the stream is what ends the work."""
        return False

    async def count(self, messages: Sequence[Mapping[str, str]]) -> int:  # noqa: ARG002
        self._cannot("count tokens")

    async def count_text(self, text: str) -> int:  # noqa: ARG002
        self._cannot("count tokens")

    async def change_budget(self, budget: int | str) -> str:  # noqa: ARG002
        self._cannot("have its memory limited from here")

    async def load(self, model: Path, **_: Any) -> bool:  # noqa: ARG002
        self._cannot("be given a model file")

    async def settings(self, **_: Any) -> Settings:
        self._cannot("have its modes changed")

    def _cannot(self, what: str) -> NoReturn:
        raise BadRequest(f"{self.offer.place} cannot {what}")

    def _body(self, options: Mapping[str, Any] | None) -> dict[str, Any]:
        """What this server takes of `options`; some refuse a request for one field they do not know."""
        taken = {name: value for name, value in (options or {}).items() if self.offer.takes(name)}
        body = {**taken, "model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        if self.offer.kind == "llama-server":
            body |= {"return_progress": True, "timings_per_token": True}
        return body

    async def _answer(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[ChatChunk, None]:
        """The answer; asks again where the server only minds how a field is called."""
        try:
            async with aclosing(self._read(path, self._worded(body))) as chunks:
                async for chunk in chunks:
                    yield chunk
        except BadRequest as error:
            if not self._learns(error.message, body):
                raise
        except EngineUnavailable as error:
            self._lost = error
            self._changed.set()
            raise
        else:
            return
        async with aclosing(self._answer(path, body)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _worded(self, body: Mapping[str, Any]) -> dict[str, Any]:
        named = {self._habits.get(name, name): value for name, value in body.items()}
        named.pop("", None)
        return named

    def _learns(self, said: str, body: Mapping[str, Any]) -> bool:
        """Whether the refusal `said` is about one of two fields that servers disagree on."""
        habits = {"max_tokens": "max_completion_tokens", "stream_options": ""}
        for name, better in habits.items():
            if (better or name) in said and name in body and name not in self._habits:
                self._habits[name] = better
                return True
        return False

    async def _read(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[ChatChunk, None]:
        patience, reader = Patience(self.first_wait_s), _Reader()
        try:
            async with aclosing(self._events("POST", path, reader.take, body, patience)) as chunks:
                async for chunk in chunks:
                    if reader.finished:
                        patience.seconds = END_WAIT_S
                    elif chunk.text or chunk.reasoning:
                        patience.seconds = self.next_wait_s
                    yield chunk
        except EngineUnavailable:
            if not reader.finished:  # else only the end of the stream is missing
                raise
        if not reader.started:
            raise S2Error(f"{self.offer.place} sent no answer", hint="ask again")
        yield reader.last()

    def _snapshot(self) -> Snapshot:
        n_ctx = self.offer.n_ctx
        card = ModelCard("", self.model, "", 0, n_ctx, n_ctx, 0, 0, False, self.offer.kind == "llama-server")
        return Snapshot(
            instance=self.offer.place,
            state="ready",
            progress=1.0,
            error=None,
            model=card,
            plan=None,
            settings=Settings("", 0, 0),
            modes=(),
            notices=(),
            running=0,
            queued=0,
            clients=0,
            timings=None,
            rss_bytes=0,
        )


class _Reader:
    """Reads the events of one answer. Times are measured here where the server does not say them."""

    def __init__(self) -> None:
        self.started = self.finished = False
        self._asked_at = self._first_at = time.monotonic()
        self._pieces = 0
        self._finish: FinishReason = "eos"
        self._usage: Any = None
        self._timings: Any = None

    def take(self, data: dict[str, Any]) -> ChatChunk:
        choices = data.get("choices")
        choice = choices[0] if choices else {}
        delta = choice.get("delta") or choice.get("message") or {}
        text = text_of(delta.get("content")) or text_of(choice.get("text")) or text_of(delta.get("refusal"))
        reasoning = text_of(delta.get("reasoning_content")) or text_of(delta.get("reasoning"))
        if text or reasoning:
            self._pieces += 1
            self._first_at = time.monotonic() if self._pieces == 1 else self._first_at
        self.started = self.started or bool(choices)
        if finish := choice.get("finish_reason"):
            self.finished = True
            self._finish = _FINISH.get(str(finish), "eos")
        self._usage = data.get("usage") or self._usage
        self._timings = data.get("timings") or self._timings
        return ChatChunk(
            text=text,
            reasoning=reasoning,
            progress=_if_it_fits(progress_from_json, data.get("prompt_progress")),
            timings=_if_it_fits(timings_from_json, data.get("timings")),
        )

    def last(self) -> ChatChunk:
        return ChatChunk(finish=self._finish, timings=self._figures())

    def _figures(self) -> Timings | None:
        """The server's own timings, else what its usage and the clock say; None without either."""
        usage = self._usage if isinstance(self._usage, dict) else {}
        prompt, predicted = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        known = _if_it_fits(timings_from_json, self._timings)
        if known is not None:
            context = prompt + predicted or known.prompt_n + known.cache_n + known.predicted_n
            return known if known.context_n else replace(known, context_n=context)
        if not predicted:
            return None
        details = usage.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else 0
        # What came in one piece was written while nothing came.
        since = self._first_at if self._pieces > 1 else self._asked_at
        return timings_from_json(
            {
                "prompt_n": max(0, prompt - cached),
                "cache_n": cached,
                "prompt_ms": 1e3 * (since - self._asked_at),
                "predicted_n": predicted,
                "predicted_ms": 1e3 * (time.monotonic() - since),
                "context_n": prompt + predicted,
            }
        )


def _if_it_fits(read: Callable[[Any], T | None], data: object) -> T | None:
    """What `read` makes of figures that other servers may mean differently; None where they do."""
    try:
        return read(data or None)
    except (TypeError, ValueError, AttributeError):
        return None


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0
