"""Another budget while a model is loaded: by request, and by what the machine shows."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import LOAD, until

import engine.state
from engine.budget import parse_budget
from engine.cards import snapshot
from engine.device import Device
from engine.errors import BadRequest
from engine.governor import MemoryGovernor
from engine.job import Loaded
from engine.launcher import Handle
from engine.messages import Snapshot
from engine.model import ModelInfo
from engine.plan import Wishes, make_plan
from engine.probe import call
from engine.routes import create_app
from engine.state import EngineState
from engine.strain import Strain
from engine.wire import Load

MIB = 1 << 20
INFO = ModelInfo(
    path=Path("/m.gguf"),
    name="Moe",
    arch="qwen3moe",
    size_bytes=2000 * MIB,
    n_layer=24,
    n_expert=64,
    n_expert_used=8,
    n_ctx_train=4096,
    kv_bytes_per_token=1000,
    expert_bytes=1800 * MIB,
    largest_expert_bytes=MIB,
)
WELL = Strain(free=6000 * MIB, memory=8000 * MIB)


class Slots:
    bytes_min, bytes_all = 20 * MIB, 1800 * MIB

    def __init__(self) -> None:
        self.size = 600 * MIB

    def resize(self, n_bytes: int, /) -> int:
        self.size = n_bytes
        return n_bytes

    def warm(self) -> None: ...


class Engine:
    """The engine's calls without a process, over a model whose experts are slots of our own."""

    def __init__(self) -> None:
        self.state, self.slots, self.strain = EngineState(os.getpid()), Slots(), WELL
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(create_app(self.state)), base_url="http://engine"
        )

    def load(self, *, held_whole: bool = False) -> None:
        machine = Device(cores=1, memory_bytes=8000 * MIB, available_bytes=6000 * MIB, arch="x86_64")
        wishes = Wishes() if held_whole else Wishes(budget="1000M")
        governor = MemoryGovernor(
            self.slots,
            budget_bytes=1000 * MIB,
            slot_bytes=600 * MIB,
            other_bytes=400 * MIB,
            idle_bytes=225 * MIB,
            model_bytes=INFO.size_bytes,
            read=lambda: self.strain,
        )
        plan = make_plan(machine, INFO, wishes)
        self.state.loaded = Loaded(
            Load(INFO.path, {}),
            INFO,
            plan,
            plan.n_ctx,
            True,
            ("as it was loaded",),
            None if held_whole else governor,
        )

    async def ask(self, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        reply = await (self.http.get("/budget") if body is None else self.http.post("/budget", json=body))
        return reply.status_code, reply.json()

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot.from_json(snapshot(self.state))


@pytest.fixture
async def engine_() -> AsyncIterator[Engine]:
    found = Engine()
    yield found
    await found.http.aclose()
    found.state.leave()
    await asyncio.to_thread(found.state.worker.join, 10)


async def test_a_budget_on_request(engine_: Engine) -> None:
    engine_.load()
    assert await engine_.ask() == (200, {"budget_bytes": 1000 * MIB, "slot_bytes": 600 * MIB, "notice": ""})
    status, answer = await engine_.ask({"budget": "700M"})
    assert status == 200
    assert answer["budget_bytes"] == engine_.snapshot.budget_bytes == 700 * MIB
    assert answer["slot_bytes"] == engine_.snapshot.slot_bytes == engine_.slots.size == 300 * MIB
    assert answer["notice"] == "budget: 700 MiB for the engine; experts take 300 MiB of 1.8 GiB"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "budget is not a size"),
        ({"budget": "lots"}, "'lots' is no budget"),
        ({"budget": "1G", "model": "x"}, "unknown field 'model'"),
        ({"budget": "410M"}, "too small: this model needs 420 MiB"),
    ],
    ids=str,
)
async def test_budgets_that_are_refused_change_nothing(
    engine_: Engine, body: dict[str, Any], words: str
) -> None:
    engine_.load()
    status, answer = await engine_.ask(body)
    assert status == 400
    assert words in answer["error"]["message"]
    assert answer["error"]["hint"]
    assert engine_.slots.size == 600 * MIB


async def test_without_a_store_there_is_nothing_to_change(engine_: Engine) -> None:
    status, answer = await engine_.ask({"budget": "1G"})
    assert (status, answer["error"]["message"]) == (503, "no model is loaded")
    engine_.load(held_whole=True)
    status, answer = await engine_.ask({"budget": "1G"})
    assert (status, answer["error"]["hint"]) == (
        400,
        "models of experts on the CPU can give memory back, others cannot",
    )
    assert engine_.snapshot.slot_bytes == 0


async def test_shortages_are_noticed_and_said(engine_: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.state, "_LOOK_EVERY_S", 0.01)
    engine_.load()
    task = asyncio.create_task(engine_.state.govern())
    await asyncio.sleep(0.1)
    assert engine_.slots.size == 600 * MIB
    engine_.strain = replace(WELL, free=MIB)
    while len(engine_.snapshot.notices) < 2:
        await asyncio.sleep(0.01)
    first, second = engine_.snapshot.notices
    assert first == "as it was loaded"
    assert second == "experts take 450 MiB of 1.8 GiB: hardly any memory is free"
    engine_.state.leave()
    await task


async def test_a_look_that_fails_does_not_end_the_looking(
    engine_: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.state, "_LOOK_EVERY_S", 0.01)
    engine_.load()
    looks = []

    def look(*, busy: bool) -> str:
        looks.append(busy)
        raise OSError("no such file")

    governor = engine_.state.loaded.governor if engine_.state.loaded else None
    assert governor is not None
    monkeypatch.setattr(governor, "tick", look)
    task = asyncio.create_task(engine_.state.govern())
    while len(looks) < 3:
        await asyncio.sleep(0.01)
    engine_.state.leave()
    await task


async def test_only_the_latest_notices_stay(engine_: Engine) -> None:
    engine_.load()
    for number in range(10):
        engine_.state.memory_changed(f"change {number}")
    engine_.state.memory_changed("")
    assert engine_.snapshot.notices == ("as it was loaded", "change 7", "change 8", "change 9")


async def test_the_same_model_with_the_budget_it_has_is_served(engine_: Engine) -> None:
    engine_.load()
    assert not engine_.state.load(Load(INFO.path, {}), "")
    engine_.state.streams[asyncio.Event()] = "somebody"
    assert not engine_.state.load(Load(INFO.path, {"budget": parse_budget("1000M").wire}), "other")


def test_a_real_answer_stays_the_same_whatever_the_budget_does_meanwhile(engine: Handle) -> None:
    body = {"messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 48}
    body |= {"temperature": 0, "ignore_eos": True}

    def ask(path: str, **fields: Any) -> dict[str, Any]:
        return call(engine.socket, "POST", path, fields, timeout_s=120)

    ask("/load", **LOAD | {"n_ctx": 512, "budget": "500M"})
    until(lambda: "store" not in ask("/v1/chat/completions", **body)["timings"])  # every expert is in memory
    whole = ask("/v1/chat/completions", **body)
    with pytest.raises(BadRequest, match="too small") as caught:
        ask("/budget", budget="60M")
    least = int(caught.value.hint.split("M ")[0])
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask, "/v1/chat/completions", **body)
        sizes = []
        while not answer.done():
            for budget in (f"{least}M", "max", f"{least + 16}M"):
                sizes.append(ask("/budget", budget=budget)["slot_bytes"])
                time.sleep(0.02)
    assert len(set(sizes)) == 3
    assert answer.result()["choices"] == whole["choices"]
    store = answer.result()["timings"]["store"]
    assert store["evicted"] > 0
    assert store["bytes_read"] > 0
    assert store["hit_rate"] < 1.0
