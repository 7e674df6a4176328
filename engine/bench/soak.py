"""Several clients at once for as long as one likes, with cancels, broken connections, budgets and kills.

What comes is compared with what came when nothing else did. In the first half of the time the engine is
killed again and again, and a client starts it anew; the engine of the second half lives on, so that growth
would show: `engine.bench.life` says what of its memory is compared. It is one of its own, in a folder of its
own.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.bench.life import COMPARED, Life, Rest, slots_resident
from engine.bench.visitor import (
    EXACT,
    LONGEST_DRAFT,
    N_CTX,
    Asked,
    Expected,
    Home,
    Pace,
    Talk,
    Tally,
    Visitor,
    questions,
)
from engine.client import EngineClient
from engine.device import detect
from engine.errors import BadRequest, EngineUnavailable, NativeError
from engine.launcher import find_engine
from engine.messages import Snapshot
from engine.model import read_model_info
from engine.paths import Paths
from engine.plan import Wishes, make_plan
from engine.together import until_one_ends

_TALKS_EACH = 2
_QUIET_EVERY_S = 20.0
_RESTS_PER_LIFE = 3  # of an engine that is going to be killed
_LEFT = (0.1, 0.4, 0.7)  # parts of the experts' memory that budgets leave
_RSS_TOLERANCE = 0.02


@dataclass(slots=True)
class Verdict:
    """`crashes`: deaths of an engine that were no kills of ours; `budgets`: changes of it, `lowered` those
    that took memory from experts; `slowest_s`: the longest wait, for an answer or a start, that had an end;
    `rss_growth`: the worst of all engines, as a share. What is measured stands in `compared`; lists, so that
    a step can be told from a slope.
    """

    passed: bool
    seconds: float
    slowest_s: float
    kills: int
    crashes: int
    budgets: int
    lowered: int
    rests: int
    compared: str
    rss_growth: float
    lean_s: float
    lean_mib: list[float]
    rss_mib: list[float]
    kept_mib: list[float]
    slots_mib: list[float]
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
        self._pace = Pace()
        self._home = Home(paths, model, threads, self._pace)
        self._model, self._threads = model, threads
        self._tally, self._expected = Tally(), Expected()
        self._lives = [Life()]
        self._kills = self._budgets = self._lowered = 0
        self._measured: list[Talk] = []
        self._low = _low_budgets(model)

    async def run(self, seconds: float, clients: int) -> Verdict:
        started = time.monotonic()
        await self._home.settle()
        talks = [[questions(client, number) for number in range(_TALKS_EACH)] for client in range(clients)]
        await self._learn([asked for own in talks for asked in own])
        visitors = [self._visitor(own) for own in talks]
        await until_one_ends(*(visitor.stay() for visitor in visitors), self._disturb(visitors, seconds))
        longest = max(self._lives, key=lambda life: len(life.rests))
        growth = max(life.growth for life in self._lives)
        tally = self._tally
        crashes = max(0, tally.starts - self._kills)
        return Verdict(
            passed=not (tally.mixed or tally.lost or crashes) and growth <= _RSS_TOLERANCE,
            seconds=round(time.monotonic() - started, 1),
            slowest_s=round(self._pace.slowest_s, 1),
            kills=self._kills,
            crashes=crashes,
            budgets=self._budgets,
            lowered=self._lowered,
            rests=sum(len(life.rests) for life in self._lives),
            compared=COMPARED,
            rss_growth=round(growth, 5),
            lean_s=round(longest.seconds, 1),
            lean_mib=[_mib(rest.lean) for rest in longest.rests],
            rss_mib=[_mib(rest.rss) for rest in longest.rests],
            kept_mib=[_mib(rest.kept) for rest in longest.rests],
            slots_mib=[_mib(rest.slots) for rest in longest.rests],
            tally=tally,
        )

    def kill(self) -> bool:
        """False where no engine answers."""
        found = find_engine(self._paths)
        if found is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(found.hello.pid, signal.SIGKILL)
        return True

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
            with self._pace.noted():
                await asked.read(client)
        return asked

    def _visitor(self, talks: list[tuple[str, str]]) -> Visitor:
        home = Home(self._paths, self._model, self._threads, self._pace)
        return Visitor(home, talks, self._expected, self._tally, random.Random(self._random.random()))

    async def _disturb(self, visitors: list[Visitor], seconds: float) -> None:
        """Now and then everything rests and the memory is measured; then another budget, or a kill."""
        started = time.monotonic()
        open_gates(visitors)
        while (passed := time.monotonic() - started) < seconds or not self._lives[-1].rests:
            await asyncio.sleep(max(0.0, min(seconds - passed, _QUIET_EVERY_S)))
            async with _rest(visitors):
                await self._measure()
            await asyncio.sleep(self._random.uniform(0, 3))
            early = time.monotonic() - started < seconds / 2 or not self._kills
            if early and len(self._lives[-1].rests) >= _RESTS_PER_LIFE:
                if await asyncio.to_thread(self.kill):
                    self._kills += 1
                    self._lives.append(Life())
            else:
                await self._budget(self._random.choice(["max", *self._low]))

    async def _measure(self) -> None:
        """The engine's memory after the same answers with the same budget, when nobody else asks."""
        started = await self._home.settle()
        self._tally.starts += started
        await self._budget()
        for mode in EXACT:  # as wide as visitors ask: buffers are touched to their ends
            for talk in self._measured:
                await self._ask(talk, mode, LONGEST_DRAFT)
        before = await self._look()
        await self._budget()  # conversations that were put aside are let go of
        after = await self._look()
        slots = slots_resident(await self._smaps())
        lean = after.rss_bytes - after.kept_bytes - slots  # a model without a budget keeps them
        rest = Rest(time.monotonic(), before.rss_bytes, before.kept_bytes, slots, lean)
        self._lives[-1].rests.append(rest)

    async def _smaps(self) -> str:
        async with self._home.client() as client:
            hello = await client.handshake()
        return Path(f"/proc/{hello.pid}/smaps").read_text()

    async def _look(self) -> Snapshot:
        """The engine after what it was told to do."""
        async with self._home.client() as client:
            await client.count_text("here")  # the decode thread answers, after all that came before
            return await _snapshot(client)

    async def _budget(self, budget: int | str = "max") -> None:
        async with self._home.client() as client:
            with contextlib.suppress(BadRequest):  # a dense model has none
                await client.change_budget(budget)
                self._budgets += 1
                self._lowered += budget != "max"


def _low_budgets(model: Path) -> list[int | str]:
    """Bytes for the engine with which only a part of the experts is in memory."""
    info = read_model_info(model)
    other = make_plan(detect(), info, Wishes(n_ctx=N_CTX, budget="max")).other_bytes
    return [other + int(part * info.slots_bytes) for part in _LEFT]


async def _snapshot(client: EngineClient) -> Snapshot:
    async with contextlib.aclosing(client.telemetry()) as snapshots:
        async for snapshot in snapshots:
            return snapshot
    raise EngineUnavailable("the engine left")


def _mib(count: int) -> float:
    return round(count / 2**20, 1)


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
