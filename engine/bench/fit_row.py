"""One row of `bench fit`: an engine with a model and no flag, inside whatever limits this process has.

Run as `python -m engine.bench.fit_row MODEL FOLDER`. Its one question names the prompt and how long the
answer is. Whoever gave it the folder, which the engine works in, ends what is left of either.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engine.bench.child import serve
from engine.bench.fit_sweep import Cell, budgets, by_hand, sweep
from engine.client import EngineClient
from engine.errors import BadRequest, ModelError
from engine.events import Timings
from engine.forecast import PROMPT
from engine.launcher import ensure_engine
from engine.machine.inventory import this_machine
from engine.messages import Snapshot
from engine.model import ModelInfo, read_model_info
from engine.paths import Paths
from engine.plan import Plan, Wishes, make_plan

_LINGER_S = 30.0  # it leaves by itself when the bench is ended from outside


def _prepare(model: Path, folder: Path) -> Callable[[Any], object]:
    info = read_model_info(model)
    plan = make_plan(this_machine(model.parent)[0], info, Wishes())
    return lambda question: {**_forecast(plan), **asyncio.run(_answer(info, folder, question))}


def _forecast(plan: Plan) -> dict[str, Any]:
    forecast = plan.forecast
    assert forecast is not None
    return {
        "plan_bytes": plan.total_bytes,
        "budget_bytes": plan.budget_bytes,
        "mode": plan.speculation.mode,
        "expected": {
            "tok_s": [forecast.tokens_per_s.low, forecast.tokens_per_s.high],
            "prefill_s": [forecast.prefill_s.low, forecast.prefill_s.high],
            "hit": [forecast.hit.low, forecast.hit.high],
        },
    }


async def _answer(info: ModelInfo, folder: Path, question: dict[str, Any]) -> dict[str, Any]:
    """What an engine of its own does with the question, and what memory it took."""
    paths = Paths(runtime=folder / "run", state=folder / "state", data=folder / "data")
    handle = await asyncio.to_thread(ensure_engine, paths, linger_s=_LINGER_S)
    async with EngineClient(handle.socket) as client:
        await client.load(info.path)
        await _until_ready(client)
        timings = await _ask(client, question["text"], question["tokens"])
        shot = await anext(client.telemetry())
        swept = await _sweep(client, shot, info.n_expert_used, question) if question["sweep"] else {}
        await client.shutdown()
    store = timings.store
    return {
        **swept,
        "peak_bytes": shot.peak_bytes,
        "tok_s": 1e3 * timings.predicted_n / timings.predicted_ms,
        "prefill_s": PROMPT / timings.prompt_n * timings.prompt_ms / 1e3,
        "hit": store.hits / store.asked if store and store.asked else 1.0,
    }


async def _ask(client: EngineClient, text: str, tokens: int, **settings: str | int) -> Timings:
    options = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, **settings}
    timings = None
    async for chunk in client.chat([{"role": "user", "content": text}], options=options):
        timings = chunk.timings or timings
    assert timings is not None
    return timings


async def _sweep(client: EngineClient, shot: Snapshot, used: int, question: dict[str, Any]) -> dict[str, Any]:
    async def ask(text: str, mode: str, experts: int, tokens: int) -> Timings:
        drafting = {"draft_experts": experts} if experts else {}
        return await _ask(client, text, tokens, mode=mode, **drafting)

    planned = shot.budget_bytes

    async def change_budget(budget: int) -> bool:
        try:
            await client.change_budget(budget or "max")
        except BadRequest:  # too small, or a model that is held whole, which keeps what was planned
            return budget == planned
        return True

    auto = Cell(planned, "auto")
    cells = by_hand(budgets(planned, shot.peak_bytes, question["limit"]), used)
    await sweep(cells, auto, question["sweep"], ask, change_budget)
    cells = [cell for cell in cells if cell.tokens]
    best = max(cells, key=lambda cell: cell.tok_s)
    found = {"auto_tok_s": auto.tok_s, "auto_of_best": auto.tok_s / best.tok_s, "best": asdict(best)}
    return {**found, "cells": [{**asdict(cell), "tok_s": cell.tok_s} for cell in (auto, *cells)]}


async def _until_ready(client: EngineClient) -> Snapshot:
    async for shot in client.telemetry():
        if shot.state == "ready":
            return shot
        if shot.error:
            raise ModelError(shot.error)
    raise ModelError("the engine left while it loaded")


if __name__ == "__main__":
    serve(lambda: _prepare(*map(Path, sys.argv[1:3])))
