"""What a calibration found while an engine answers becomes its setting, but for who has chosen another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from engine.device import detect
from engine.job import Loaded, LoadJob
from engine.model import read_model_info
from engine.paths import EMBEDDED_MODEL
from engine.plan import Wishes, make_plan
from engine.seeds import MEASURED_HERE
from engine.state import EngineState
from engine.wire import Load


@pytest.fixture
async def state() -> AsyncIterator[EngineState]:
    state, info = EngineState(os.getpid()), read_model_info(EMBEDDED_MODEL)
    plan, load = make_plan(detect(), info, Wishes()), Load(EMBEDDED_MODEL, {})
    state.loading = LoadJob(load)
    state.load_done(state.loading, Loaded(load, info, plan, plan.n_ctx, True, ()))
    yield state
    state.leave()
    await asyncio.to_thread(state.worker.join, 10)


async def test_what_was_found_is_used_and_says_why(state: EngineState) -> None:
    assert state.loaded is not None
    found = state.speculation.draft_experts + 2
    state.measured(found)
    assert state.speculation.draft_experts == found
    assert state.loaded.plan.speculation.draft_experts == found
    assert state.loaded.plan.reasons["draft_experts"] == MEASURED_HERE


async def test_who_has_chosen_keeps_it(state: EngineState) -> None:
    state.change_settings({"draft_experts": 1})
    state.measured(4)
    assert state.speculation.draft_experts == 1


async def test_a_model_that_has_gone_is_not_told(state: EngineState) -> None:
    state.loaded = None
    state.measured(4)
    assert state.loaded is None
