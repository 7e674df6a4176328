"""Several clients at once for as long as one likes, with cancels, broken connections, budgets and kills.

Every prompt is longer than a narrow pass and is read from its first token, so its answer is the same to the
last character whatever else happens: what comes is compared with what came when nothing else did. The engine
is one of its own, in a folder of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import tempfile
import time
import uuid
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.client import EngineClient
from engine.errors import BadRequest, EngineUnavailable, NativeError
from engine.launcher import Handle, ensure_engine
from engine.memory import rss_bytes
from engine.paths import Paths

_TOPICS = ("a lighthouse", "a bakery", "a glacier", "an orchestra", "a beehive", "a harbour", "a desert")
_PROMPTS_EACH = 2
_TOKENS = 32
_QUIET_EVERY_S = 20.0
_KILL_EVERY = 3  # rests
_START_S = 120.0
_LINGER_S = 30.0  # it leaves by itself when the soak is ended from outside
_RETRIES = 8
_RETRY_S = 0.5
_CANCEL_SHARE, _DROP_SHARE = 0.2, 0.2
_RSS_TOLERANCE = 0.02


@dataclass(slots=True)
class Tally:
    """What happened. `mixed`: texts that were not those of their prompts; `lost`: prompts nobody answered.

    `rss_growth`: of the process at rest, from its first measurement to its last, the worst of all engines.
    """

    answers: int = 0
    cancelled: int = 0
    dropped: int = 0
    broken: int = 0
    kills: int = 0
    budgets: int = 0
    mixed: int = 0
    lost: int = 0
    rss_growth: float = 0.0
    slowest_cancel_s: float = 0.0

    @property
    def failed(self) -> bool:
        return bool(self.mixed or self.lost) or self.rss_growth > _RSS_TOLERANCE


def run(args: Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="s2-soak-") as root:
        folder = Path(root)
        paths = Paths(runtime=folder / "run", state=folder / "state", data=folder / "data")
        soak = _Soak(paths, args.model.expanduser().absolute(), args.threads, args.seed)
        try:
            tally = asyncio.run(soak.run(60 * args.minutes, args.clients))
        finally:
            soak.end()
    if args.json:
        print(json.dumps(asdict(tally)))
    else:
        print("\n".join(f"{name:<18}{value:.4g}" for name, value in asdict(tally).items()))
    if tally.failed:
        raise NativeError("the soak failed: texts mixed or lost, or memory grew by more than 2 %")


class _Soak:
    def __init__(self, paths: Paths, model: Path, threads: int | None, seed: int) -> None:
        self._paths, self._model, self._threads = paths, model, threads
        self._random = random.Random(seed)
        self._tally = Tally()
        self._handle: Handle | None = None
        self._expected: dict[str, str] = {}
        self._running = 0
        self._may_ask = asyncio.Event()

    async def run(self, seconds: float, clients: int) -> Tally:
        await self._start()
        prompts = [[_prompt(client, number) for number in range(_PROMPTS_EACH)] for client in range(clients)]
        async with self._client() as client:
            for prompt in (prompt for own in prompts for prompt in own):
                asked = _Asked(prompt, {"mode": "ar"})
                await asked.read(client)
                self._expected[prompt] = asked.text
        self._may_ask.set()
        tasks = [asyncio.create_task(self._use(own)) for own in prompts]
        keeper = asyncio.create_task(self._disturb(seconds))
        try:
            await asyncio.wait([keeper, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*tasks, keeper):
                task.cancel()
            results = await asyncio.gather(*tasks, keeper, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return self._tally

    def end(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._handle.hello.pid, signal.SIGKILL)

    # One client

    async def _use(self, prompts: list[str]) -> None:
        while True:
            for prompt in prompts:
                await self._get_answer(prompt)

    async def _get_answer(self, prompt: str) -> None:
        """Asks until there is a whole answer, as a person would after a crash."""
        for _ in range(_RETRIES):
            await self._may_ask.wait()
            self._running += 1
            try:
                async with self._client() as client:
                    if await self._try(client, prompt):
                        return
            except EngineUnavailable:
                self._tally.broken += 1
            finally:
                self._running -= 1
            await asyncio.sleep(_RETRY_S)
        self._tally.lost += 1

    async def _try(self, client: EngineClient, prompt: str) -> bool:
        """True when the answer came, or the client itself did not want it any more."""
        fate, asked = self._random.random(), _Asked(prompt, self._options())
        reading = asyncio.create_task(asked.read(client))
        try:
            if fate < _CANCEL_SHARE + _DROP_SHARE:
                await asyncio.wait([reading], timeout=self._random.uniform(0, 4))
            if fate < _CANCEL_SHARE:
                await self._cancel(client, asked, reading)
            elif fate < _CANCEL_SHARE + _DROP_SHARE:
                self._tally.dropped += 1
            else:
                await reading
                self._tally.answers += 1
        finally:
            reading.cancel()
            results = await asyncio.gather(reading, return_exceptions=True)
            self._compare(asked)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return True

    async def _cancel(self, client: EngineClient, asked: _Asked, reading: asyncio.Task[None]) -> None:
        self._tally.cancelled += 1
        started = time.monotonic()
        if await client.cancel(asked.name):
            await reading
            took = time.monotonic() - started
            self._tally.slowest_cancel_s = max(self._tally.slowest_cancel_s, took)

    def _compare(self, asked: _Asked) -> None:
        expected = self._expected[asked.prompt]
        right = expected == asked.text if asked.finish == "max_tokens" else expected.startswith(asked.text)
        self._tally.mixed += not right

    def _options(self) -> dict[str, object]:
        mode = self._random.choice(("ar", "s2-exact"))
        return {"mode": mode, "draft_length": self._random.randint(1, 8)}

    # What happens to the engine

    async def _disturb(self, seconds: float) -> None:
        """Now and then everything rests and the memory is measured; then another budget, or a kill."""
        end, first_rss, rests = time.monotonic() + seconds, 0, 0
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, _QUIET_EVERY_S))
            await self._budget("max")
            async with self._rest():
                rss = await self._measure()
            first_rss = first_rss or rss
            self._tally.rss_growth = max(self._tally.rss_growth, rss / first_rss - 1)
            if (rests := rests + 1) % _KILL_EVERY == 0:
                await asyncio.sleep(self._random.uniform(0.5, 3))
                await self._kill()
                first_rss = 0
            else:
                await self._budget(self._random.choice(("max", "70%", "85%")))

    @asynccontextmanager
    async def _rest(self) -> AsyncIterator[None]:
        self._may_ask.clear()
        while self._running:
            await asyncio.sleep(0.1)
        try:
            yield
        finally:
            self._may_ask.set()

    async def _measure(self) -> int:
        """Bytes of the engine after one answer in each mode, when nobody else asks."""
        assert self._handle is not None
        prompt = next(iter(self._expected))
        async with self._client() as client:
            for mode in ("s2-exact", "ar"):
                await _Asked(prompt, {"mode": mode}).read(client)
        return rss_bytes(Path(f"/proc/{self._handle.hello.pid}/statm"))

    async def _budget(self, budget: str) -> None:
        async with self._client() as client:
            with contextlib.suppress(BadRequest):  # a dense model has none, and a small one needs its all
                await client.change_budget(budget)
                self._tally.budgets += 1

    async def _kill(self) -> None:
        self._may_ask.clear()  # those that lose their answers ask again when there is an engine
        self.end()
        self._tally.kills += 1
        await self._start()
        self._may_ask.set()

    async def _start(self) -> None:
        self._handle = await asyncio.to_thread(
            ensure_engine, self._paths, linger_s=_LINGER_S, timeout_s=_START_S
        )
        async with self._client() as client:
            await client.load(self._model, n_ctx=1024, n_threads=self._threads, budget="max")
            async for snapshot in client.telemetry():
                if snapshot.state == "error":
                    raise NativeError(snapshot.error or "the model does not load")
                if snapshot.state == "ready":
                    return

    def _client(self) -> EngineClient:
        return EngineClient(self._paths.socket)


class _Asked:
    """One request and what has come of it."""

    def __init__(self, prompt: str, options: dict[str, object]) -> None:
        self.prompt, self.name = prompt, f"soak-{uuid.uuid4().hex}"
        self.text = self.finish = ""
        self._options = {"temperature": 0, "max_tokens": _TOKENS, "ignore_eos": True, **options}

    async def read(self, client: EngineClient) -> None:
        messages = [{"role": "user", "content": self.prompt}]
        chunks = client.chat(messages, options=self._options, request_id=self.name)
        try:
            async for chunk in chunks:
                self.text += chunk.text
                self.finish = chunk.finish or self.finish
        finally:
            await chunks.aclose()


def _prompt(client: int, number: int) -> str:
    """A prompt of its own for each client, long enough to be read in one wide pass."""
    topic = _TOPICS[(client * _PROMPTS_EACH + number) % len(_TOPICS)]
    return (
        f"Story {client}-{number}. Write about {topic} and the people who work there: who they are, what "
        "they do in the morning, what goes wrong at noon, who helps, and how the day ends for each of them."
    )
