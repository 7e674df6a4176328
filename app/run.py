"""Answers one prompt on stdout: for pipes, scripts and a quick question."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import json
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app import exits
from app.comparison import Comparison, modes_of
from app.flags import fields_for, model_of
from app.lossy import mode_words
from app.streams import closing
from app.text import Cleaner, clean
from engine.client import EngineClient
from engine.errors import BadRequest, Busy, EngineUnavailable, ModelError, S2Error, Unauthorized
from engine.events import OPENAI_FINISH, Timings
from engine.launcher import ensure_engine
from engine.model import read_model_info
from engine.paths import Paths
from engine.remote.address import check_key
from engine.remote.probe import connect
from engine.request import MODES, is_lossy

if TYPE_CHECKING:
    from engine.messages import ChatChunk
    from engine.remote.address import Address
    from engine.remote.offer import Offer


def run(arguments: argparse.Namespace) -> int:
    prompt = _prompt(arguments.prompt)
    if not prompt.strip():
        print("s2chat: there is no prompt", file=sys.stderr)
        print("hint: give one with -p TEXT or pipe it in", file=sys.stderr)
        return exits.USAGE
    out = _Output(as_json=arguments.json)
    try:
        shot = (_TwoShots if arguments.compare else _OneShot)(arguments, prompt, out)
        # Not in the event loop, where Ctrl+C would wait for it.
        return _run_at(arguments.address or ensure_engine(Paths.default()).socket, shot)
    except S2Error as error:
        out.end_line()
        return exits.complain(error)


def _run_at(place: Address | Path, shot: _OneShot) -> int:
    """A key that is missing is asked for once, where somebody can type it."""
    try:
        return asyncio.run(shot.run(place))
    except Unauthorized as error:
        if isinstance(place, Path) or place.key or not _is_typing():
            raise
        print(f"s2chat: {clean(error.message)}", file=sys.stderr)
        key = check_key(getpass.getpass("key: ", sys.stderr))
        if not key:
            raise
    return asyncio.run(shot.run(replace(place, key=key)))


def _is_typing() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


async def _client(place: Address | Path, model: str) -> EngineClient:
    return EngineClient(place) if isinstance(place, Path) else await connect(place, model)


def _prompt(given: str | None) -> str:
    """What -p says, then what is piped in."""
    parts = [] if given is None else [given]
    if sys.stdin is not None and not sys.stdin.isatty():
        with contextlib.suppress(OSError):
            parts.append(sys.stdin.buffer.read().decode("utf-8", "replace"))
    return "\n".join(part for part in parts if part)


class _Output:
    """stdout as bytes, whatever the locale; terminal control in the text never reaches a terminal."""

    def __init__(self, *, as_json: bool) -> None:
        if sys.stdout is None:
            raise BrokenPipeError
        self._stream = sys.stdout.buffer
        self._cleaner = Cleaner() if sys.stdout.isatty() else None
        self._as_json = as_json
        self._last = "\n"

    def text(self, text: str) -> None:
        if not self._as_json:
            self._write(self._cleaner.feed(text) if self._cleaner else text)

    def json(self, value: Mapping[str, Any]) -> None:
        self._write(json.dumps(value, ensure_ascii=False) + "\n")

    def end_line(self) -> None:
        """The shell's next prompt starts on a line of its own."""
        with contextlib.suppress(OSError):
            if self._cleaner:
                self._write(self._cleaner.close())
            if self._last != "\n":
                self._write("\n")

    def _write(self, text: str) -> None:
        if text:
            self._stream.write(text.encode("utf-8", "replace"))
            self._stream.flush()
            self._last = text[-1]


@dataclass
class _OneShot:
    arguments: argparse.Namespace
    prompt: str
    out: _Output
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    cancelled: bool = False
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    timings: Timings = field(default_factory=Timings)
    finish: str = ""
    mode: str = ""
    exact: bool | None = None
    memory: dict[str, int] | None = None

    async def run(self, place: Address | Path) -> int:
        async with await _client(place, self.arguments.remote_model) as client:
            self._warn(client.offer)
            task = asyncio.create_task(self._answer(client))
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt, client, task)
            try:
                await task
            except asyncio.CancelledError:
                self.finish = "cancel"
            if self.arguments.json and client.offer.is_ours:
                self.memory = await _memory(client)
        if self.arguments.json:
            self.out.json(self._result())
        self.out.end_line()
        return exits.CANCELLED if self.cancelled else exits.OK

    def _warn(self, offer: Offer) -> None:
        """Of what was asked for and the server does not know."""
        fields = [*fields_for("request", self.arguments), *(["stop"] if self.arguments.stop else [])]
        if missing := [name for name in fields if not offer.takes(name)]:
            print(f"s2chat: {offer.place} does not take {', '.join(missing)}", file=sys.stderr)
        if offer.is_remote and (load := fields_for("load", self.arguments)):
            print(f"s2chat: {', '.join(load)} is for an engine of this machine", file=sys.stderr)
        if is_lossy(self.arguments.mode or ""):
            words = f"mode {mode_words(self.arguments.mode)}: the text is not that of plain decode"
            print(f"s2chat: {words}", file=sys.stderr)

    def _interrupt(self, client: EngineClient, task: asyncio.Task[None]) -> None:
        """The first Ctrl+C ends the engine's work, the second does not wait for it."""
        if self.cancelled or not self.text:
            task.cancel()
        else:
            self._cancelling = asyncio.ensure_future(self._cancel(client, task))
        self.cancelled = True

    async def _cancel(self, client: EngineClient, task: asyncio.Task[None]) -> None:
        try:
            known = await client.cancel(self.request_id)
        except S2Error:
            known = False
        if not known:
            task.cancel()

    async def _answer(self, client: EngineClient) -> None:
        try:
            await self._stream(client)
        except EngineUnavailable as error:
            if self.text or client.offer.is_remote:
                raise
            raise await _load_error(client) or error from None

    async def _stream(self, client: EngineClient) -> None:
        await self._load(client)
        waiting = _Waiting(client)
        try:
            async with closing(self._chunks(client)) as chunks:
                async for chunk in chunks:
                    if chunk.text:
                        await waiting.end()
                    self._take(chunk)
        finally:
            await waiting.end()

    async def _load(self, client: EngineClient) -> None:
        if client.offer.is_remote:
            return  # its model is its own affair
        try:
            await client.load(model_of(self.arguments), **fields_for("load", self.arguments))
        except Busy as error:
            read_model_info(model_of(self.arguments))  # a file that no engine could load says so
            hint = error.hint or "close the other chat, or use its model; `s2chat status` shows both"
            raise Busy(error.message, hint=hint) from None

    def _options(self) -> dict[str, Any]:
        options = fields_for("request", self.arguments)
        return options | ({"stop": self.arguments.stop} if self.arguments.stop else {})

    def _chunks(
        self, client: EngineClient, more: Mapping[str, Any] | None = None
    ) -> AsyncIterator[ChatChunk]:
        options = {**self._options(), **(more or {})}
        if self.arguments.raw:
            return client.complete(self.prompt, options=options, request_id=self.request_id)
        system = [{"role": "system", "content": self.arguments.system}] if self.arguments.system else []
        messages = [*system, {"role": "user", "content": self.prompt}]
        return client.chat(messages, options=options, request_id=self.request_id)

    def _take(self, chunk: ChatChunk) -> None:
        self.text += chunk.text
        self.tokens += chunk.tokens
        self.timings = chunk.timings or self.timings
        self.finish = chunk.finish or self.finish
        self.mode = chunk.mode or self.mode
        self.exact = self.exact if chunk.exact is None else chunk.exact
        self.out.text(chunk.text)

    def _result(self) -> dict[str, Any]:
        return {
            "text": self.text,
            "token_ids": self.tokens,
            "mode": self.mode,
            "exact": self.exact,
            "finish_reason": OPENAI_FINISH.get(self.finish),  # type: ignore[call-overload]
            "finish": self.finish,
            "timings": self.timings.as_json(),
            "memory": self.memory,
        }


@dataclass
class _TwoShots(_OneShot):
    """One prompt in two modes."""

    def __post_init__(self) -> None:
        modes, rest = modes_of(self.arguments.compare, list(MODES), self.arguments.mode or "")
        if rest:
            raise BadRequest(f"unknown mode {rest!r}", hint="two of " + ", ".join(MODES))
        self.comparison = Comparison(self._ask, modes, self._options())

    def _ask(self, options: Mapping[str, Any]) -> AsyncIterator[ChatChunk]:
        self.request_id = uuid.uuid4().hex
        return self._chunks(self._client, options)

    async def _stream(self, client: EngineClient) -> None:
        if not client.offer.is_ours:
            raise BadRequest(f"{client.offer.place} has no modes to compare", hint="leave --compare out")
        await self._load(client)
        self._client = client
        waiting = _Waiting(client)
        try:
            await self.comparison.run(lambda: None)
        finally:
            await waiting.end()
        self.out.text("\n".join(self._report()) + "\n")

    def _report(self) -> list[str]:
        comparison = self.comparison
        lines = []
        for side in comparison.sides:
            lines += [f"── {mode_words(side.mode)} · {side.figures}", side.text.rstrip("\n"), ""]
        return [*lines, *comparison.verdict(), f"{comparison.prompt_words()} · seed {comparison.seed}"]

    def _result(self) -> dict[str, Any]:
        return {**self.comparison.as_json(), "memory": self.memory}


async def _memory(client: EngineClient) -> dict[str, int] | None:
    """What the engine process takes, in bytes; None when it has left."""
    with contextlib.suppress(EngineUnavailable):
        async with closing(client.telemetry()) as snapshots:
            async for snapshot in snapshots:
                return {
                    "now_bytes": snapshot.rss_bytes,
                    "peak_bytes": snapshot.peak_bytes,
                    "budget_bytes": snapshot.budget_bytes,
                }
    return None


async def _load_error(client: EngineClient) -> ModelError | None:
    """Why the model did not load, if that is what went wrong."""
    with contextlib.suppress(EngineUnavailable):
        async with closing(client.telemetry()) as snapshots:
            async for snapshot in snapshots:
                return ModelError(snapshot.error) if snapshot.state == "error" and snapshot.error else None
    return None


class _Waiting:
    """A line on the terminal that says why there is no text yet, and is gone when there is."""

    def __init__(self, client: EngineClient) -> None:
        visible = sys.stderr is not None and sys.stderr.isatty()
        self._task = asyncio.create_task(self._show(client)) if visible else None

    async def end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _show(self, client: EngineClient) -> None:
        try:
            async for snapshot in client.telemetry():
                loading = snapshot.state == "loading"
                words = f"loading the model {100 * snapshot.progress:.0f}%" if loading else ""
                print(f"\r\x1b[K{words}", end="", file=sys.stderr, flush=True)
        except S2Error:
            pass  # the request itself says what is wrong
        finally:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
