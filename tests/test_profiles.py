"""The plan for devices nobody here owns: it fits, it says why, and it gets better with the machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine import seeds
from engine.errors import BadRequest
from engine.forecast import forecast, hit_rate
from engine.geometry import QUANTS, by_name, known
from engine.model import ModelInfo, read_model_info
from engine.need import PROCESS_BYTES
from engine.paths import EMBEDDED_MODEL
from engine.placement import gpu_room
from engine.plan import Wishes, make_plan
from engine.profiles import profile_names, read_profile
from engine.seeds import Measured

GB = 10**9
GIB = 1 << 30
NAMES = {
    *("orin-nano-8gb", "orin-nx-16gb", "agx-orin-32gb", "agx-orin-64gb", "thor", "gb10"),
    *("rtx-4090-desktop", "rtx-4060-laptop", "laptop-8gb", "laptop-16gb", "laptop-32gb"),
    *("container-2-cores-4gb", "wsl2"),
}
OLMOE, QWEN = known()["olmoe-1b-7b"].info("Q4_K_M"), known()["qwen3-30b-a3b"].info("Q4_K_M")


def test_the_devices_there_are() -> None:
    assert set(profile_names()) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_simulated_total_fits(name: str) -> None:
    """Each known model on each device: inside the memory it is planned for, or refused with a way out."""
    profile = read_profile(name)
    assert "not measured" in profile.made_from
    assert profile.sources
    device = profile.device
    fitting = 0
    for model in [read_model_info(EMBEDDED_MODEL), *(item.info(item.quants[0]) for item in known().values())]:
        plan = make_plan(device, model, Wishes())
        if plan.obstacle:
            assert "would" in plan.obstacle
            continue
        fitting += 1
        on_gpu = "fits into" in plan.reasons["gpu_layers"]
        room = gpu_room(device) if on_gpu else device.available_bytes
        assert PROCESS_BYTES < plan.total_bytes <= room
        assert plan.total_bytes == plan.other_bytes + plan.held_bytes or not plan.store
        assert plan.store or on_gpu or not plan.expert_bytes
        assert set(plan.reasons) >= {
            "budget_bytes",
            "n_ctx",
            "n_threads",
            "gpu_layers",
            "draft_experts",
            "cap",
        }
        assert all(plan.reasons.values())
        assert plan.forecast is not None
        assert 0 < plan.forecast.tokens_per_s.low <= plan.forecast.tokens_per_s.high
    assert fitting >= 5


def test_where_a_model_goes() -> None:
    """A GPU takes a model whole or not at all; the memory that CPU and GPU share is one."""
    nano, big = (read_profile(name).device for name in ("orin-nano-8gb", "rtx-4090-desktop"))
    assert make_plan(nano, OLMOE, Wishes()).gpu_layers == -1
    plan = make_plan(nano, QWEN, Wishes())
    assert (plan.gpu_layers, plan.store) == (0, True)
    assert plan.budget_bytes == nano.available_bytes - (768 << 20)
    assert any("runs on the CPU" in notice for notice in plan.notices)
    assert make_plan(big, QWEN, Wishes()).gpu_layers == -1
    mixtral = known()["mixtral-8x7b"].info("Q4_K_M")
    plan = make_plan(big, mixtral, Wishes())
    assert (plan.gpu_layers, plan.store, plan.budget_bytes) == (0, True, 0), "whole in the machine's memory"


def test_the_reserve_depends_on_the_machine() -> None:
    container, laptop = (read_profile(name).device for name in ("container-2-cores-4gb", "laptop-16gb"))
    budget = make_plan(container, OLMOE, Wishes()).budget_bytes
    assert budget == container.available_bytes - max(256 << 20, int(0.06 * container.available_bytes))
    assert make_plan(laptop, QWEN, Wishes()).budget_bytes == laptop.available_bytes - int(
        0.10 * laptop.memory_bytes
    )


def test_what_would_make_it_run() -> None:
    laptop = read_profile("laptop-8gb").device
    plan = make_plan(laptop, known()["deepseek-v3"].info("Q4_K_M"), Wishes())
    assert not plan.store
    assert "more of free memory" in plan.obstacle
    assert plan.obstacle in plan.notices
    # A context too large for a tight machine: the flags that are named are enough.
    for available in range(GIB, 4 * GIB, GIB // 16):
        tight = replace(laptop, available_bytes=available)
        plan = make_plan(tight, OLMOE, Wishes(n_ctx=4096))
        if "it would run with" in plan.obstacle:
            words = plan.obstacle.rpartition("with ")[2].split()
            flags = dict(zip(words[::2], words[1::2], strict=True))
            wishes = Wishes(n_ctx=int(flags.get("-c", 4096)), cache_type=flags.get("--cache-type"))
            assert not make_plan(tight, OLMOE, wishes).obstacle
            return
    raise AssertionError("there is no machine for which flags are enough")


@pytest.mark.parametrize(
    ("name", "draft", "cap"),
    [("olmoe-1b-7b", 2, 18), ("deepseek-v2-lite", 1, 16), ("qwen3-30b-a3b", 3, 14), ("gpt-oss-120b", 1, 6)],
)
def test_the_papers_table_seeds_draft_and_cap(name: str, draft: int, cap: int) -> None:
    model = by_name(name)
    assert model is not None
    plan = make_plan(read_profile("agx-orin-64gb").device, model, Wishes())
    assert (plan.speculation.draft_experts, plan.speculation.cap) == (draft, cap)
    assert plan.reasons["cap"] == plan.reasons["draft_experts"] == "Table 1 of the paper"


def test_other_families_by_ratio() -> None:
    embedded = read_model_info(EMBEDDED_MODEL)
    assert seeds.draft_experts(embedded, "").value == embedded.n_expert_used // 4
    assert seeds.cap(embedded, "").value == 2 * embedded.n_expert_used
    v3 = known()["deepseek-v3"].info("Q4_K_M")
    assert (seeds.draft_experts(v3, "").value, seeds.cap(v3, "").value) == (1, 21)
    two_of_two = replace(embedded, n_expert=2, n_expert_used=2)
    assert (seeds.draft_experts(two_of_two, "").value, seeds.cap(two_of_two, "").value) == (1, 2)


def test_power_and_heat_move_draft_and_cap_but_never_the_budget() -> None:
    device = read_profile("orin-nano-8gb").device
    calm, slowed = (
        make_plan(replace(device, slowed=words), QWEN, Wishes()) for words in ("", "power mode 15W")
    )
    assert (slowed.speculation.draft_experts, slowed.speculation.cap) == (2, 11)
    assert (calm.speculation.draft_experts, calm.speculation.cap) == (3, 14)
    assert "power mode 15W" in slowed.reasons["cap"]
    assert "power mode 15W" in slowed.reasons["draft_experts"]
    assert slowed.budget_bytes == calm.budget_bytes


def test_what_was_measured_goes_before_the_paper() -> None:
    plan = make_plan(read_profile("thor").device, QWEN, Wishes(), Measured(draft_experts=5))
    assert plan.speculation.draft_experts == 5
    assert plan.reasons["draft_experts"] == "measured here"
    wish = make_plan(read_profile("thor").device, QWEN, Wishes(draft_experts=2), Measured(draft_experts=5))
    assert wish.speculation.draft_experts == 2


# --- forecasts


def speed(model: ModelInfo, held: float = 1.0, **changes: object) -> float:
    device = replace(read_profile("laptop-16gb").device, **changes)  # type: ignore[arg-type]
    seen = forecast(
        device,
        model,
        held_bytes=int(held * model.expert_bytes),
        n_ctx=4096,
        n_ubatch=512,
        on_gpu=False,
        mapped=False,
    )
    assert seen.tokens_per_s.low <= seen.tokens_per_s.high
    assert seen.prefill_s.low <= seen.prefill_s.high
    return seen.tokens_per_s.low


def test_more_of_anything_is_never_slower() -> None:
    speeds = [speed(QWEN, held) for held in (0.0, 0.05, 0.2, 0.5, 0.9, 1.0)]
    assert speeds == sorted(speeds)
    assert speed(QWEN, 0.3, disk_speed=6 * GB) > speed(QWEN, 0.3, disk_speed=GB)
    assert speed(QWEN, 1.0, disk_speed=6 * GB) == speed(QWEN, 1.0, disk_speed=GB), "nothing is read"
    assert speed(QWEN, memory_speed=100 * GB) > speed(QWEN, memory_speed=50 * GB)


def test_a_speed_by_hand() -> None:
    """All in memory: bytes of a token over the bandwidth, and the layers' own time."""
    read = QWEN.size_bytes - QWEN.expert_bytes - QWEN.lookup_bytes + QWEN.expert_bytes // 16
    read += 1000 * QWEN.kv_bytes_per_token
    assert speed(QWEN) == pytest.approx(1 / (read / (51.2 * GB * 0.5) + 48 * 150e-6))


@pytest.mark.parametrize(("share", "seen"), [(0.12, 0.634), (0.18, 0.753), (0.24, 0.834), (0.50, 0.978)])
def test_hits_are_those_of_the_recorded_routing(share: float, seen: float) -> None:
    """Qwen3-30B-A3B in `bench replay`, with the policy of the store; recorded with 6 experts per token."""
    found = hit_rate(replace(QWEN, n_expert_used=6), int(share * QWEN.expert_bytes))
    assert found.low <= seen <= found.high


def test_a_model_without_habits_hits_by_chance() -> None:
    quarter = replace(QWEN, n_expert=32, n_expert_used=8)
    found = hit_rate(quarter, quarter.expert_bytes // 4)
    assert found.low <= 0.2 <= found.high, "as a model of this kind was measured"
    assert hit_rate(quarter, quarter.expert_bytes).low == 1.0


# --- known models


def test_computed_sizes_are_those_of_published_files() -> None:
    """GB of files on the hub, to three percent."""
    published = {
        ("olmoe-1b-7b", "Q4_K_M"): 4.21,
        ("deepseek-v2-lite", "Q4_K_M"): 10.36,
        ("qwen3-30b-a3b", "Q4_K_M"): 18.56,
        ("qwen3-30b-a3b", "Q8_0"): 32.48,
        ("gpt-oss-20b", "MXFP4"): 12.1,
        ("gpt-oss-120b", "MXFP4"): 63.4,
    }
    for (name, quant), size in published.items():
        assert known()[name].info(quant).size_bytes == pytest.approx(size * GB, rel=0.03), (name, quant)


@pytest.mark.parametrize("name", sorted(known()))
def test_computed_weights_are_those_of_the_card(name: str) -> None:
    model = known()[name]
    assert model.total == pytest.approx(model.weights, rel=0.02)
    # Cards count the embedding or not, and round generously.
    assert model.per_token == pytest.approx(model.active, rel=0.15)
    assert set(model.quants) <= set(QUANTS)


def test_known_models_by_name() -> None:
    wide = by_name("OLMoE-1B-7B:q8_0")
    assert wide is not None
    assert wide.size_bytes > OLMOE.size_bytes
    assert by_name("/some/file.gguf") is None
    with pytest.raises(BadRequest, match="no quantisation"):
        by_name("olmoe-1b-7b:Q9")


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"title":"","made_from":"","notes":"","sources":[],"device":{"cores":2}}'],
)
def test_a_file_that_is_no_profile(tmp_path: Path, content: str) -> None:
    file = tmp_path / "mine.json"
    file.write_text(content)
    with pytest.raises(BadRequest, match="no profile of a device"):
        read_profile(str(file))


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    mine = (
        '{"cores": 4, "memory_bytes": 8000, "available_bytes": 6000, "arch": "x86_64", "features": ["avx2"]}'
    )
    file.write_text(f'{{"title":"Mine","made_from":"a guess","notes":"","sources":[],"device":{mine}}}')
    assert read_profile(str(file)).device.cores == 4
    file.write_text(file.read_text().replace('"cores": 4', '"cores": 0'))
    with pytest.raises(BadRequest, match="whole numbers"):
        read_profile(str(file))
    with pytest.raises(BadRequest, match="is known") as caught:
        read_profile("jetson-2000")
    assert "orin-nano-8gb" in caught.value.hint
