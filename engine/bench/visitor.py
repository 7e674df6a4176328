"""One client of an engine that may die at any moment: its conversations, and how it gets its answers.

Prompts are longer than a narrow pass and follow-up questions shorter, so each answer has two forms: that of
a conversation read from its first token, and that of one whose first turn stands in the cache. Each is the
same to the last character whatever happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from engine.client import EngineClient
from engine.errors import EngineUnavailable, NativeError
from engine.launcher import Handle, ensure_engine
from engine.request import MODES
from engine.together import within

if TYPE_CHECKING:
    import random

    from engine.paths import Paths

Talk = tuple[tuple[str, str], ...]  # role and text of each message

#: Modes for chats whose answers are plain decode's, so that a mixed one shows.
EXACT = [mode.name for mode in MODES.values() if mode.exact and not mode.compared]
TOKENS = 16
LONGEST_DRAFT = 8
N_CTX = 1024
_TOPICS = ("a lighthouse", "a bakery", "a glacier", "an orchestra", "a beehive", "a harbour", "a desert")
_FOLLOW_UP = "And then?"
_START_S = 120.0  # for an engine to answer
_LINGER_S = 30.0  # an engine leaves by itself when its clients are ended from outside
_TRIES = 8
_LONGEST_S = 300.0  # for an answer; who waits longer waits for ever
_LENIENCE = 20  # times what anything has taken so far, where that is more
_CANCEL_SHARE, _DROP_SHARE = 0.2, 0.2
_MOST_NOTES = 20
_PATIENCE_S = 3.0  # a cancel comes that soon


def questions(client: int, number: int) -> tuple[str, str]:
    """What is asked in a conversation, turn after turn; of its own for each client and number."""
    topic = _TOPICS[(2 * client + number) % len(_TOPICS)]
    first = (
        f"Story {client}-{number}. Write about {topic} and the people who work there: who they are, what "
        "they do in the morning, what goes wrong at noon, who helps, and how the day ends for each of them."
    )
    return first, _FOLLOW_UP


@dataclass(slots=True)
class Tally:
    """What happened to requests.

    `mixed`: answers that were not those of their prompts; `lost`: questions that nobody answered, `hung`
    those of them that waited for too long; `broken`: connections that died; `starts`: of the engine, by
    clients; `notes`: the first few oddities, in words.
    """

    answers: int = 0
    conversations: int = 0
    cancelled: int = 0
    dropped: int = 0
    broken: int = 0
    starts: int = 0
    mixed: int = 0
    lost: int = 0
    hung: int = 0
    slowest_cancel_s: float = 0.0
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(text)


class Pace:
    """How long things take here: on a machine that others keep busy, what is slow does not hang."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.slowest_s = 0.0

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """What is inside has been waited for, and came."""
        started = self._clock()
        yield
        self.slowest_s = max(self.slowest_s, self._clock() - started)

    def limit_s(self, least: float) -> float:
        return max(least, _LENIENCE * self.slowest_s)


class Asked:
    """One request and what has come of it."""

    def __init__(self, talk: Talk, mode: str, draft_length: int = 4) -> None:
        self.talk, self.name = talk, f"soak-{uuid.uuid4().hex}"
        self.text = self.finish = ""
        self.cached = 0  # tokens that were not read again
        self._options = {
            "temperature": 0,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "mode": mode,
            "draft_length": draft_length,
        }

    async def read(self, client: EngineClient) -> None:
        messages = [{"role": role, "content": text} for role, text in self.talk]
        chunks = client.chat(messages, options=self._options, request_id=self.name)
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                self.text += chunk.text
                self.finish = chunk.finish or self.finish
                if chunk.timings is not None:
                    self.cached = chunk.timings.cache_n


class Expected:
    """What is answered when nothing else happens, by what was said and whether its beginning was cached."""

    def __init__(self) -> None:
        self._texts: dict[tuple[Talk, bool], str] = {}

    def add(self, asked: Asked) -> None:
        self._texts[asked.talk, asked.cached > 0] = asked.text

    def fits(self, asked: Asked) -> bool:
        text = self._texts.get((asked.talk, asked.cached > 0))
        if text is None:
            return not asked.text
        return text == asked.text if asked.finish == "max_tokens" else text.startswith(asked.text)


class Home:
    """Where the engine is, for one client: found there, or started by its own launcher."""

    def __init__(self, paths: Paths, model: Path, threads: int | None, pace: Pace) -> None:
        self._paths, self._model, self._threads = paths, model, threads
        self.pace = pace
        self._handle: Handle | None = None

    async def settle(self) -> bool:
        """Returns when the model is ready; whether this client had to start the engine itself."""
        if self._handle is not None:
            await asyncio.to_thread(self._handle.death)  # lets go of the process it had started
        with self.pace.noted():
            self._handle = await asyncio.to_thread(
                ensure_engine, self._paths, linger_s=_LINGER_S, timeout_s=self.pace.limit_s(_START_S)
            )
            await self._load()
        return self._handle.process is not None

    async def _load(self) -> None:
        async with self.client() as client:
            await client.load(self._model, n_ctx=N_CTX, n_threads=self._threads, budget="max")
            async for snapshot in client.telemetry():
                if snapshot.state == "error":
                    raise NativeError(snapshot.error or "the model does not load")
                if snapshot.state == "ready":
                    break

    def client(self) -> EngineClient:
        return EngineClient(self._paths.socket)


class Visitor:
    """Holds its conversations one after the other, for ever. `gate` is open while it may ask."""

    def __init__(
        self,
        home: Home,
        talks: list[tuple[str, str]],
        expected: Expected,
        tally: Tally,
        random: random.Random,
    ) -> None:
        self._home, self._talks, self._expected = home, talks, expected
        self._tally, self._random = tally, random
        self.gate = asyncio.Event()
        self.resting = asyncio.Event()
        self.resting.set()

    async def stay(self) -> None:
        while True:
            for asked in self._talks:
                await self._converse(asked)

    async def _converse(self, asked: tuple[str, str]) -> None:
        talk: Talk = ()
        for question in asked:
            talk = (*talk, ("user", question))
            answer = await self._insist(talk)
            if answer is None:
                self._tally.lost += 1
                return
            talk = (*talk, ("assistant", answer))
        self._tally.conversations += 1

    async def _insist(self, talk: Talk) -> str | None:
        """Asks until there is a whole answer, as a person would after a cancel or a crash."""
        failures = 0
        while failures < _TRIES:
            await self.gate.wait()
            self.resting.clear()
            limit_s = self._home.pace.limit_s(_LONGEST_S)
            try:
                with self._home.pace.noted():
                    asked = await within(limit_s, self._ask(talk))
            except TimeoutError:
                self._tally.hung += 1
                self._tally.note(f"no answer within {limit_s:g} s to {talk[0][1][:12]!r}")
                return None
            except EngineUnavailable:
                self._tally.broken += 1
                failures += 1
                started = await self._home.settle()
                self._tally.starts += started
            else:
                if asked.finish == "max_tokens":
                    self._tally.answers += 1
                    return asked.text
            finally:
                self.resting.set()
        return None

    async def _ask(self, talk: Talk) -> Asked:
        """Asks once, and may change its mind."""
        asked = Asked(talk, self._random.choice(EXACT), self._random.randint(1, LONGEST_DRAFT))
        async with self._home.client() as client:
            reading = asyncio.create_task(asked.read(client))
            try:
                fate = self._random.random()
                if fate < _CANCEL_SHARE + _DROP_SHARE:
                    await asyncio.wait([reading], timeout=self._random.uniform(0, _PATIENCE_S))
                if fate < _CANCEL_SHARE:
                    await self._cancel(client, asked, reading)
                elif fate < _CANCEL_SHARE + _DROP_SHARE:
                    self._tally.dropped += 1
                else:
                    await reading
            finally:
                reading.cancel()
                (failure,) = await asyncio.gather(reading, return_exceptions=True)
                self._judge(asked)
        if isinstance(failure, Exception):
            raise failure
        return asked

    async def _cancel(self, client: EngineClient, asked: Asked, reading: asyncio.Task[None]) -> None:
        self._tally.cancelled += 1
        started = time.monotonic()
        if await client.cancel(asked.name):
            await reading
            took = time.monotonic() - started
            self._tally.slowest_cancel_s = max(self._tally.slowest_cancel_s, took)

    def _judge(self, asked: Asked) -> None:
        if not self._expected.fits(asked):
            self._tally.mixed += 1
            self._tally.note(f"mixed: {asked.text!r}, {asked.cached} cached, for {asked.talk[0][1][:12]!r}")
