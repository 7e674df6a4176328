"""Several clients at once for as long as one likes, with cancels, broken connections, budgets and kills.

What comes is compared with what came when nothing else did. In the first half of the time the engine is
killed again and again, and a client starts it anew; the engine of the second half lives on, so that growth
would show. It is one of its own, in a folder of its own.
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
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from engine.bench.visitor import EXACT, LONGEST_DRAFT, Asked, Expected, Home, Talk, Tally, Visitor, questions
from engine.errors import BadRequest, NativeError
from engine.launcher import find_engine
from engine.memory import rss_bytes
from engine.paths import Paths
from engine.together import until_one_ends

_TALKS_EACH = 2
_QUIET_EVERY_S = 20.0
_RESTS_PER_LIFE = 3  # of an engine that is going to be killed
_WARM_RESTS = 1  # of a life, which do not count: buffers grow to their size
_BUDGETS = ("max", "70%", "85%")
_RSS_TOLERANCE = 0.02


@dataclass(slots=True)
class Life:
    """Bytes of one engine process at rest, one measurement after the other."""

    rss: list[int] = field(default_factory=list)

    @property
    def growth(self) -> float:
        """Of the last measurement over the first that counts; 0 where there are not two."""
        counted = self.rss[_WARM_RESTS:]
        return counted[-1] / counted[0] - 1 if counted else 0.0


@dataclass(slots=True)
class Verdict:
    """`crashes`: deaths of an engine that were no kills of ours; `rss_growth`: the worst of all engines, as a
    share; `rss_mib`: at each rest of the longest life, so that a step can be told from a slope.
    """

    passed: bool
    seconds: float
    kills: int
    crashes: int
    budgets: int
    rests: int
    rss_growth: float
    rss_mib: list[float]
    tally: Tally

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        return {**{name: value for name, value in found.items() if name != "tally"}, **found["tally"]}


def run(args: Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="s2-soak-") as root:
        folder = Path(root)
        paths = Paths(runtime=folder / "run", state=folder / "state", data=folder / "data")
        soak = _Soak(paths, args.model.expanduser().absolute(), args.threads, args.seed)
        try:
            verdict = asyncio.run(soak.run(60 * args.minutes, args.clients)).as_json()
        finally:
            soak.kill()
    if args.json:
        print(json.dumps(verdict))
    else:
        print("\n".join(f"{name:<18}{value}" for name, value in verdict.items()))
    if not verdict["passed"]:
        raise NativeError(
            "the soak failed: answers mixed or lost, a crash, or memory that grew by more than 2 %"
        )


class _Soak:
    def __init__(self, paths: Paths, model: Path, threads: int | None, seed: int) -> None:
        self._paths = paths
        self._random = random.Random(seed)
        self._home = Home(paths, model, threads)
        self._model, self._threads = model, threads
        self._tally, self._expected = Tally(), Expected()
        self._lives = [Life()]
        self._kills = self._budgets = 0
        self._measured: list[Talk] = []

    async def run(self, seconds: float, clients: int) -> Verdict:
        started = time.monotonic()
        await self._home.settle()
        talks = [[questions(client, number) for number in range(_TALKS_EACH)] for client in range(clients)]
        await self._learn([asked for own in talks for asked in own])
        visitors = [self._visitor(own) for own in talks]
        await until_one_ends(*(visitor.stay() for visitor in visitors), self._disturb(visitors, seconds))
        longest = max(self._lives, key=lambda life: len(life.rss))
        growth = max(life.growth for life in self._lives)
        tally = self._tally
        crashes = max(0, tally.starts - self._kills)
        return Verdict(
            passed=not (tally.mixed or tally.lost or crashes) and growth <= _RSS_TOLERANCE,
            seconds=round(time.monotonic() - started, 1),
            kills=self._kills,
            crashes=crashes,
            budgets=self._budgets,
            rests=sum(len(life.rss) for life in self._lives),
            rss_growth=round(growth, 5),
            rss_mib=[round(count / 2**20, 1) for count in longest.rss],
            tally=tally,
        )

    def kill(self) -> None:
        found = find_engine(self._paths)
        if found is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.hello.pid, signal.SIGKILL)

    async def _learn(self, talks: list[tuple[str, str]]) -> None:
        """Both forms of every answer, with nobody else there."""
        async with self._home.client() as client:
            for first, second in talks:
                opening: Talk = (("user", first),)
                answer = await self._ask(opening)
                whole: Talk = (*opening, ("assistant", answer.text), ("user", second))
                self._expected.add(answer)
                self._expected.add(await self._ask(whole))
                await self._ask((("user", "Something else, so that nothing of it is in the cache."),))
                await client.change_budget("max")  # conversations that were put aside are let go of
                self._expected.add(await self._ask(whole))
                self._measured = [opening, whole]

    async def _ask(self, talk: Talk, mode: str = "ar", draft_length: int = 0) -> Asked:
        asked = Asked(talk, mode, draft_length)
        async with self._home.client() as client:
            await asked.read(client)
        return asked

    def _visitor(self, talks: list[tuple[str, str]]) -> Visitor:
        home = Home(self._paths, self._model, self._threads)
        return Visitor(home, talks, self._expected, self._tally, random.Random(self._random.random()))

    async def _disturb(self, visitors: list[Visitor], seconds: float) -> None:
        """Now and then everything rests and the memory is measured; then another budget, or a kill."""
        started = time.monotonic()
        open_gates(visitors)
        while (passed := time.monotonic() - started) < seconds or not self._lives[-1].rss:
            await asyncio.sleep(max(0.0, min(seconds - passed, _QUIET_EVERY_S)))
            async with _rest(visitors):
                await self._measure()
            await asyncio.sleep(self._random.uniform(0, 3))
            early = time.monotonic() - started < seconds / 2 or not self._kills
            if early and len(self._lives[-1].rss) >= _RESTS_PER_LIFE:
                await asyncio.to_thread(self.kill)
                self._kills += 1
                self._lives.append(Life())
            else:
                await self._budget(self._random.choice(_BUDGETS))

    async def _measure(self) -> None:
        """The engine's memory after the same answers with the same budget, when nobody else asks."""
        started = await self._home.settle()
        self._tally.starts += started
        await self._budget("max")
        for mode in EXACT:  # as wide as visitors ask: buffers are touched to their ends
            for talk in self._measured:
                await self._ask(talk, mode, LONGEST_DRAFT)
        found = await asyncio.to_thread(find_engine, self._paths)
        if found is not None:
            self._lives[-1].rss.append(rss_bytes(Path(f"/proc/{found.hello.pid}/statm")))

    async def _budget(self, budget: str) -> None:
        async with self._home.client() as client:
            with contextlib.suppress(BadRequest):  # a dense model has none, and a small one needs its all
                await client.change_budget(budget)
                self._budgets += 1


def open_gates(visitors: list[Visitor]) -> None:
    for visitor in visitors:
        visitor.gate.set()


@asynccontextmanager
async def _rest(visitors: list[Visitor]) -> AsyncIterator[None]:
    """Nobody asks anything meanwhile."""
    for visitor in visitors:
        visitor.gate.clear()
    for visitor in visitors:
        await visitor.resting.wait()
    try:
        yield
    finally:
        open_gates(visitors)
