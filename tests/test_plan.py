"""What the planner makes of a machine, a model and wishes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.device import Device
from engine.errors import BadRequest
from engine.model import ModelInfo
from engine.plan import CONTEXT_DEFAULT, CONTEXT_MAX, CONTEXT_MIN, Wishes, make_plan

GB = 10**9
MACHINE = Device(cores=4, memory_bytes=8 * GB, available_bytes=6 * GB, arch="aarch64")
MOE = ModelInfo(
    path=Path("moe.gguf"),
    name="Moe",
    arch="qwen3moe",
    size_bytes=2 * GB,
    n_layer=24,
    n_expert=64,
    n_expert_used=8,
    n_ctx_train=32768,
    kv_bytes_per_token=24_000,
)
DENSE = replace(MOE, name="Plain", arch="llama", n_expert=0, n_expert_used=0)


def test_nothing_asked_for() -> None:
    plan = make_plan(MACHINE, MOE, Wishes())
    assert plan.n_ctx == CONTEXT_DEFAULT
    assert (plan.n_threads, plan.threads_fixed) == (4, False)
    assert plan.speculation.mode == "ar"
    assert plan.speculation.draft_experts == 2
    assert plan.notices == ()
    assert plan.cache_type == "f16"
    assert set(plan.reasons) == {
        "n_ctx",
        "n_threads",
        "cache_type",
        "repack",
        "mode",
        "draft_experts",
        "draft_length",
    }


def test_a_smaller_cache_has_room_for_more() -> None:
    tight = replace(MACHINE, available_bytes=GB // 2)
    plain, small = (make_plan(tight, MOE, Wishes(cache_type=name)) for name in ("f16", "q8_0"))
    assert (plain.cache_type, small.cache_type) == ("f16", "q8_0")
    assert small.reasons["cache_type"] == "asked for"
    assert plain.n_ctx * 1.8 < small.n_ctx < plain.n_ctx * 2
    with pytest.raises(BadRequest, match="unknown cache type"):
        make_plan(MACHINE, MOE, Wishes(cache_type="q4_0"))


def test_a_dense_model_runs_in_ar_and_says_so() -> None:
    for mode in (None, "ar", "s2-exact"):
        plan = make_plan(MACHINE, DENSE, Wishes(mode=mode))
        assert plan.speculation.mode == "ar"
        assert any("dense model" in notice for notice in plan.notices)


def test_speculation_as_asked_for() -> None:
    plan = make_plan(MACHINE, MOE, Wishes(mode="s2-exact", draft_experts=3, draft_length=0))
    assert plan.speculation.mode == "s2-exact"
    assert (plan.speculation.draft_experts, plan.speculation.draft_length) == (3, 0)
    assert (
        plan.reasons["mode"] == plan.reasons["draft_experts"] == plan.reasons["draft_length"] == "asked for"
    )


def test_few_experts_still_leave_one_to_draft_with() -> None:
    assert make_plan(MACHINE, replace(MOE, n_expert_used=2), Wishes()).speculation.draft_experts == 1


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        ({"n_ctx": CONTEXT_MIN - 1}, "a context of 63 tokens"),
        ({"n_ctx": -5}, "a context of -5 tokens"),
        ({"n_ctx": CONTEXT_MAX + 1}, "a context of"),
        ({"n_threads": -1}, "-1 threads"),
        ({"n_threads": 10_000}, "10000 threads"),
        ({"mode": "turbo"}, "unknown mode 'turbo'"),
        ({"draft_experts": 9}, "9 draft experts, but Moe uses 8"),
        ({"draft_experts": 0}, "draft_experts is 0"),
        ({"draft_length": 32}, "draft_length is 32"),
    ],
    ids=str,
)
def test_wishes_that_make_no_sense(wishes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        make_plan(MACHINE, MOE, Wishes(**wishes))
    assert words in caught.value.message
    assert caught.value.hint


def test_a_context_beyond_the_training_is_noticed() -> None:
    plan = make_plan(MACHINE, MOE, Wishes(n_ctx=40_000))
    assert plan.n_ctx == 40_000
    assert any("trained for 32768" in notice for notice in plan.notices)


def test_a_context_beyond_the_memory_is_noticed() -> None:
    tight = replace(MACHINE, available_bytes=GB // 2)
    plan = make_plan(tight, MOE, Wishes(n_ctx=32768))
    assert any("needs up to 0.8 GB, 0.5 GB are free" in notice for notice in plan.notices)


def test_little_memory_makes_a_short_context() -> None:
    plan = make_plan(replace(MACHINE, available_bytes=GB // 2), replace(MOE, size_bytes=GB // 5), Wishes())
    assert plan.n_ctx == 2560  # an eighth of 0.5 GB, at 24 kB a token
    assert plan.reasons["n_ctx"] == "memory"
    nothing = make_plan(replace(MACHINE, available_bytes=0), MOE, Wishes())
    assert nothing.n_ctx == 512


def test_a_model_trained_for_little_keeps_to_it() -> None:
    plan = make_plan(MACHINE, replace(MOE, n_ctx_train=256), Wishes())
    assert plan.n_ctx == 256
    assert plan.reasons["n_ctx"] == "the model's own"


def test_no_second_copy_of_the_weights_when_memory_is_short() -> None:
    assert make_plan(MACHINE, MOE, Wishes()).repack
    short = make_plan(replace(MACHINE, available_bytes=3 * GB), MOE, Wishes())
    assert not short.repack
    assert "no memory" in short.reasons["repack"]
    assert short.notices == ()


def test_a_model_larger_than_memory_is_noticed() -> None:
    plan = make_plan(replace(MACHINE, available_bytes=GB), MOE, Wishes())
    assert not plan.repack
    assert any("larger than the free memory" in notice for notice in plan.notices)


def test_a_number_of_threads_is_a_limit_unless_it_is_fixed() -> None:
    plan = make_plan(MACHINE, MOE, Wishes(n_threads=3))
    assert (plan.n_threads, plan.threads_fixed) == (3, False)
    plan = make_plan(MACHINE, MOE, Wishes(n_threads=3, threads_fixed=True))
    assert (plan.n_threads, plan.threads_fixed) == (3, True)
