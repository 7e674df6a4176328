"""What the planner makes of a machine, a model and wishes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.budget import parse_budget
from engine.device import Device
from engine.errors import BadRequest
from engine.model import ModelInfo
from engine.need import need_of
from engine.plan import CONTEXT_DEFAULT, CONTEXT_MAX, CONTEXT_MIN, UBATCH, Wishes, make_plan

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
    expert_bytes=1_800_000_000,
    largest_expert_bytes=1_171_875,
    row_bytes=100_000,
)
DENSE = replace(
    MOE, name="Plain", arch="llama", n_expert=0, n_expert_used=0, expert_bytes=0, largest_expert_bytes=0
)


def test_nothing_asked_for() -> None:
    plan = make_plan(MACHINE, MOE, Wishes())
    assert plan.n_ctx == CONTEXT_DEFAULT
    assert (plan.n_threads, plan.threads_fixed) == (4, False)
    assert plan.speculation.mode == "auto"
    assert plan.speculation.draft_experts == 3
    assert plan.notices == ()
    assert plan.cache_type == "f16"
    assert set(plan.reasons) == {
        "n_ctx",
        "n_threads",
        "cache_type",
        "repack",
        "budget_bytes",
        "store",
        "mode",
        "draft_experts",
        "draft_length",
        "gpu_layers",
        "cap",
    }


def test_a_smaller_cache_has_room_for_more() -> None:
    tight = replace(MACHINE, available_bytes=GB // 2)
    plain, small = (make_plan(tight, MOE, Wishes(cache_type=name)) for name in ("f16", "q8_0"))
    assert (plain.cache_type, small.cache_type) == ("f16", "q8_0")
    assert small.reasons["cache_type"] == "asked for"
    assert plain.n_ctx * 1.8 < small.n_ctx < plain.n_ctx * 2
    with pytest.raises(BadRequest, match="unknown cache type"):
        make_plan(MACHINE, MOE, Wishes(cache_type="q4_0"))


def test_a_dense_model_has_no_experts_to_draft_with() -> None:
    for mode in ("s2-exact", "s2"):
        plan = make_plan(MACHINE, DENSE, Wishes(mode=mode))
        assert plan.speculation.mode == "ar"
        assert any("dense model" in notice for notice in plan.notices)
    for mode in ("auto", "ar", "ngram"):  # which look up what was said before
        plan = make_plan(MACHINE, DENSE, Wishes(mode=mode))
        assert plan.speculation.mode == mode
        assert not any("dense model" in notice for notice in plan.notices)


def test_on_a_gpu_exactness_is_no_promise_so_plain_decode_is_the_default() -> None:
    plan = make_plan(
        replace(MACHINE, gpu=True, gpu_memory_bytes=24 * GB, gpu_free_bytes=23 * GB), MOE, Wishes()
    )
    assert plan.gpu_layers != 0
    assert plan.speculation.mode == "ar"
    assert make_plan(MACHINE, DENSE, Wishes()).speculation.mode == "auto"


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
        ({"mode": "eagle3"}, "mode 'eagle3' is not offered: it needs a draft head"),
        ({"draft_experts": 9}, "9 draft experts, but Moe uses 8"),
        ({"draft_experts": 0}, "draft_experts is 0"),
        ({"draft_length": 32}, "draft_length is 32"),
        ({"cap": 999}, "a cap of 999 experts"),
        ({"cap": 0}, "cap is 0"),
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
    assert plan.reasons["n_ctx"] == "an eighth of the 477 MiB that are free"
    nothing = make_plan(replace(MACHINE, available_bytes=0), MOE, Wishes())
    assert nothing.n_ctx == 512


def test_a_model_trained_for_little_keeps_to_it() -> None:
    plan = make_plan(MACHINE, replace(MOE, n_ctx_train=256), Wishes())
    assert plan.n_ctx == 256
    assert plan.reasons["n_ctx"] == "the model's own"


def test_no_second_copy_of_the_weights_when_memory_is_short() -> None:
    assert make_plan(MACHINE, MOE, Wishes(store=False)).repack
    short = make_plan(replace(MACHINE, available_bytes=3 * GB), MOE, Wishes(store=False))
    assert not short.repack
    assert "no memory" in short.reasons["repack"]
    assert short.notices == ()


def test_a_dense_model_larger_than_memory_is_noticed() -> None:
    plan = make_plan(replace(MACHINE, available_bytes=GB), DENSE, Wishes())
    assert not plan.repack
    assert any("larger than the free memory" in notice for notice in plan.notices)


def test_a_number_of_threads_is_a_limit_unless_it_is_fixed() -> None:
    plan = make_plan(MACHINE, MOE, Wishes(n_threads=3))
    assert (plan.n_threads, plan.threads_fixed) == (3, False)
    plan = make_plan(MACHINE, MOE, Wishes(n_threads=3, threads_fixed=True))
    assert (plan.n_threads, plan.threads_fixed) == (3, True)


def test_all_in_memory_where_it_fits() -> None:
    plan = make_plan(MACHINE, MOE, Wishes())
    assert (plan.budget_bytes, plan.store) == (0, True)
    assert (plan.resident_bytes, plan.expert_bytes) == (GB // 5, 9 * GB // 5)
    assert "fits" in plan.reasons["budget_bytes"]


def test_a_moe_model_larger_than_memory_gets_what_is_free_less_a_reserve() -> None:
    plan = make_plan(replace(MACHINE, available_bytes=3 * GB // 2), MOE, Wishes())
    assert plan.budget_bytes == 3 * GB // 2 - 3 * GB // 8, "a quarter of little memory"
    assert plan.store
    assert plan.repack, "without a second copy"
    assert "358 MiB for the rest" in plan.reasons["budget_bytes"]
    (notice,) = plan.notices
    assert "experts are read from disk" in notice
    large = make_plan(
        replace(MACHINE, memory_bytes=24 * GB, available_bytes=20 * GB),
        replace(MOE, size_bytes=30 * GB, expert_bytes=28 * GB),
        Wishes(),
    )
    assert large.budget_bytes == 20 * GB - 24 * GB // 10


def test_the_limit_is_where_the_whole_no_longer_fits() -> None:
    """There is no machine between that needs a budget larger than the model."""
    last: int | None = None
    for available in range(GB // 2, 6 * GB, GB // 50):
        plan = make_plan(replace(MACHINE, available_bytes=available), MOE, Wishes(n_ctx=4096))
        if plan.budget_bytes:
            last = plan.budget_bytes
            assert plan.store
            assert plan.budget_bytes < available
        elif last is not None:
            need = need_of(MOE, n_ctx=4096, cell_bytes=24_000, n_ubatch=UBATCH, n_outputs=32)
            assert need.whole - GB // 25 < last < need.whole
            return
    raise AssertionError("it never fits, or no budget was ever given")


def test_too_little_for_any_budget_is_said_and_runs_as_before() -> None:
    plan = make_plan(replace(MACHINE, available_bytes=GB // 2), MOE, Wishes())
    assert (plan.budget_bytes, plan.store, plan.repack) == (0, False, False)
    assert any("needs at least" in notice for notice in plan.notices)


@pytest.mark.parametrize(
    ("wish", "count"),
    [("1G", 1 << 30), ("1500M", 1500 << 20), ("75%", 3 * GB // 2), (2 * GB, 2 * GB)],
    ids=str,
)
def test_a_budget_as_asked_for(wish: int | str, count: int) -> None:
    plan = make_plan(MACHINE, MOE, Wishes(budget=wish))
    assert (plan.budget_bytes, plan.store) == (count, True)
    assert plan.reasons["budget_bytes"] == "asked for"
    assert plan.notices == ()


def test_a_budget_beyond_the_free_memory_is_noticed() -> None:
    plan = make_plan(MACHINE, MOE, Wishes(budget="7G"))
    assert plan.budget_bytes == 7 << 30
    assert plan.notices == ("a budget of 7.0 GiB, but 5.6 GiB are free",)


def test_no_limit_keeps_to_the_file_however_large() -> None:
    plan = make_plan(replace(MACHINE, available_bytes=GB), MOE, Wishes(budget="max"))
    assert (plan.budget_bytes, plan.store) == (0, False)
    assert any("larger than the free memory" in notice for notice in plan.notices)


def test_too_small_a_budget_says_what_is_enough() -> None:
    with pytest.raises(
        BadRequest, match=r"a budget of 200 MiB is too small: Moe needs about \d+ MiB; "
    ) as caught:
        make_plan(MACHINE, MOE, Wishes(budget="200M", n_ctx=4096))
    assert "191 MiB weights that stay" in caught.value.message
    assert "94 MiB KV cache" in caught.value.message
    found = re.search(r"--budget (\d+M) or more", caught.value.hint)
    assert found is not None
    assert make_plan(MACHINE, MOE, Wishes(budget=found[1], n_ctx=4096)).store
    # An estimate: a little less is left to the load, which finds out what is really needed.
    assert make_plan(MACHINE, MOE, Wishes(budget=f"{int(found[1][:-1]) - 50}M", n_ctx=4096)).store
    with pytest.raises(BadRequest):
        make_plan(MACHINE, MOE, Wishes(budget="255M", n_ctx=64))
    assert make_plan(MACHINE, MOE, Wishes(budget="260M", n_ctx=64)).store


def test_a_small_budget_makes_a_short_context() -> None:
    assert make_plan(MACHINE, MOE, Wishes(budget="500M")).n_ctx < CONTEXT_DEFAULT
    assert make_plan(MACHINE, MOE, Wishes(budget="max")).n_ctx == CONTEXT_DEFAULT


def test_a_dense_model_is_held_whole() -> None:
    plan = make_plan(MACHINE, DENSE, Wishes(budget="3G"))
    assert (plan.budget_bytes, plan.store, plan.repack) == (3 << 30, False, False)
    with pytest.raises(BadRequest, match=r"is too small: Plain needs about .* as it is held whole"):
        make_plan(MACHINE, DENSE, Wishes(budget="1G"))
    assert make_plan(MACHINE, DENSE, Wishes(budget="5G")).repack


def test_a_copy_of_the_embedding_counts() -> None:
    tied = replace(MOE, tied_bytes=GB // 10)
    needs = [
        need_of(model, n_ctx=512, cell_bytes=24_000, n_ubatch=UBATCH, n_outputs=32) for model in (MOE, tied)
    ]
    assert needs[1].least - needs[0].least == GB // 10


def test_no_store_on_a_gpu_nor_for_experts_that_are_not_stacked() -> None:
    tight = replace(MACHINE, available_bytes=GB)
    for device, model in ((replace(MACHINE, gpu=True), MOE), (tight, replace(MOE, expert_bytes=0))):
        plan = make_plan(device, model, Wishes())
        assert (plan.store, plan.gpu_layers) == (False, -1)
        assert not make_plan(device, model, Wishes(store=True)).store
    plan = make_plan(replace(MACHINE, gpu=True), MOE, Wishes(budget="1G"))
    assert plan.budget_bytes == 0
    assert any("on the CPU only" in notice for notice in plan.notices)


def test_no_limit_on_a_machine_that_holds_it_all() -> None:
    plan = make_plan(MACHINE, MOE, Wishes(budget="max"))
    assert (plan.budget_bytes, plan.store) == (0, True)


def test_the_store_by_wish() -> None:
    assert not make_plan(MACHINE, MOE, Wishes(store=False)).store
    plan = make_plan(MACHINE, MOE, Wishes(store=True))
    assert (plan.budget_bytes, plan.store) == (0, True)
    tight = replace(MACHINE, available_bytes=3 * GB // 2)
    assert not make_plan(tight, MOE, Wishes(store=False)).store
    with pytest.raises(BadRequest, match="held whole"):
        make_plan(MACHINE, MOE, Wishes(budget="1G", store=False))


@pytest.mark.parametrize(
    "wish",
    ["", "x", "3X", "-1G", "0", "0%", 0, -5, "3 G B", "max%", "1e9", "1P", "nan", "99999999T", True, 1.5, []],
)
def test_budgets_that_make_no_sense_say_what_to_write(wish: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_budget(wish)
    assert "budget" in caught.value.message
    assert "3G or 1500M, 25%" in caught.value.hint


@pytest.mark.parametrize(
    ("wish", "wire"),
    [
        *(("3G", 3 << 30), ("3g", 3 << 30), (" 3 GiB ", 3 << 30), ("1.5M", 3 << 19), ("2T", 2 << 40)),
        *((12345, 12345), ("12345", 12345), ("max", "max"), ("MAX", "max")),
        *(("25%", "25%"), ("12.50 %", "12.5%"), ("133.7%", "133.7%")),
    ],
    ids=str,
)
def test_equal_budgets_look_alike_on_the_wire(wish: int | str, wire: int | str) -> None:
    assert parse_budget(wish).wire == wire
    assert parse_budget(wire) == parse_budget(wish)
