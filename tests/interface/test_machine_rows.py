"""What the machine panel says of figures that are there, old or missing, and of an answer's counters."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from test_ui_budget import SNAPSHOT

from app.board import Board
from app.chosen import Machine, found_rows, plan_rows
from app.figures import answer_rows, machine_rows
from app.gauges import bar, spark
from app.sheet import Row
from app.switches import Switches
from app.trend import Trend
from engine.device import Device
from engine.events import StoreFigures, Timings
from engine.machine.reading import Reading
from engine.messages import ModeCard, ModelCard, PlanCard, Snapshot

GIB = 1 << 30
MODEL = ModelCard("m.gguf", "Moe", "qwen3moe", 9 * GIB, 4096, 4096, 64, 8, is_moe=True)
PLAN = PlanCard(
    4096,
    4,
    512,
    budget_bytes=2 * GIB,
    store=True,
    resident_bytes=GIB,
    expert_bytes=8 * GIB,
    reasons={"budget_bytes": "what is free, less 1.5 GiB for the rest of the machine", "n_ctx": "asked for"},
)
LOADED = replace(
    SNAPSHOT, model=MODEL, plan=PLAN, slot_bytes=GIB, modes=(ModeCard("ar", True, False, "plain"),)
)


def texts(rows: list[Row]) -> dict[str, str]:
    return {row.name: "".join(text for text, _ in row.pieces) for row in rows}


def reasons(rows: list[Row]) -> dict[str, str]:
    return {row.name: row.why for row in rows}


def test_values_with_their_sources() -> None:
    found = {
        "memory.used": Reading(12 * GIB, "/proc/meminfo"),
        "memory.total": Reading(32 * GIB, "/proc/meminfo"),
        "memory.free": Reading(20 * GIB, "/proc/meminfo"),
        "engine.memory": Reading(3 * GIB // 2, "/proc/7/statm"),
        "engine.cpus": Reading(3.9, "/proc/7/stat"),
        "engine.read": Reading(301e6, "/proc/7/io"),
        "disk.read": Reading(512e6, "/proc/diskstats: nvme0n1"),
        "cpu.load": Reading(52.0, "/proc/stat"),
        "gpu.load": Reading(37, "NVML"),
        "gpu.used": Reading(4 * GIB, "NVML"),
        "gpu.total": Reading(24 * GIB, "NVML"),
        "gpu.power": Reading(119.6, "NVML"),
        "gpu.temperature": Reading(None, "NVML", "Not Supported"),
        "power": Reading(None, "RAPL", "Permission denied"),
        "temperature": Reading(61.0, "coretemp Package id 0"),
        "throttled": Reading("heat at cpu-thermal", "trip points"),
    }
    rows = machine_rows(found, LOADED)
    assert texts(rows) == {
        "memory": "memory        ███░░░░░ 12.0 of 32.0 GiB, 20.0 free",
        "engine": "engine        ██████░░ 1.5 of 2.0 GiB",
        "experts": "experts       █░░░░░░░ 1.0 of 8.0 GiB in memory",
        "CPU": "CPU           ████░░░░ 52%, engine on 3.9 CPUs",
        "GPU": "GPU           ███░░░░░ 37%, 4.0 of 24.0 GiB",
        "disk": "disk          engine 301 MB/s · all 512 MB/s",
        "power": "power         GPU 120 W",
        "heat": "heat          61 °C",
        "throttled": "throttled     heat at cpu-thermal",
    }
    assert reasons(rows)["power"] == "RAPL: Permission denied; NVML"
    assert reasons(rows)["heat"] == "coretemp Package id 0; NVML: Not Supported"


def test_what_is_old_or_missing_says_so() -> None:
    rows = machine_rows(
        {
            "gpu.load": Reading(37, "NVML", "8 s old: ended by signal 9"),
            "power": Reading(6.84, "jtop", "4 s old: gives no answer"),
            "gpu.power": Reading(3.0, "NVML"),
            "temperature": Reading(None, "/sys/class/thermal", "no sensor"),
            "throttled": Reading("", "trip points"),
        },
        None,
    )
    said = texts(rows)
    assert said["GPU"].endswith("37% ▲old")
    assert said["power"].endswith("7 W ▲old · GPU 3 W")
    assert said["heat"].endswith("n/a: no sensor")
    assert said["memory"].endswith("n/a: not looked at yet")
    assert said["throttled"].endswith("no")
    assert "8 s old: ended by signal 9" in reasons(rows)["GPU"]
    assert "experts" not in said


def timings(seconds: float, tokens: int, **more: Any) -> Timings:
    return Timings(predicted_n=tokens, predicted_ms=1e3 * seconds, verify_n=tokens, **more)


def test_a_trend_is_of_what_happened_between_two_looks() -> None:
    trend = Trend()
    store = StoreFigures(asked=100, hits=50, bytes_read=100 << 20)
    trend.take(timings(1, 50, draft_n=10, draft_n_accepted=5, store=store))
    later = StoreFigures(asked=200, hits=140, bytes_read=110 << 20)
    trend.take(timings(2, 60, draft_n=20, draft_n_accepted=14, store=later))
    trend.take(timings(2, 60, draft_n=20, draft_n_accepted=14, store=later))  # nothing came meanwhile
    assert list(trend.speed) == [50.0, 10.0]
    assert list(trend.accepted) == [0.5, 0.9]
    assert list(trend.hit) == [0.5, 0.9]
    assert list(trend.read) == [2.0, 1.0]
    trend.take(None)
    trend.take(timings(1, 7))  # the next answer, in plain decode with everything in memory
    assert (trend.speed[-1], trend.accepted[-1], trend.hit[-1], trend.read[-1]) == (7.0, None, None, None)
    whole = timings(2, 60, draft_n=20, draft_n_accepted=14, store=later)
    running = texts(answer_rows(trend, whole, mode="ar =exact", running=True, has_store=True))
    assert running["speed"].endswith("█▂▂ 7.0 tok/s")
    assert running["written in"].endswith("ar =exact")
    assert running["accepted"].endswith("▅▇  –")
    over = texts(answer_rows(trend, whole, mode="ar =exact", running=False, has_store=True))
    assert over["speed"].endswith(" 30 tok/s")
    assert (over["hit"][-3:], over["accepted"][-3:]) == ("70%", "70%")
    assert (
        "all experts in memory"
        in texts(answer_rows(trend, None, mode="", running=False, has_store=False))["hit"]
    )


def test_another_chat_has_a_trend_of_its_own_but_the_same_engine() -> None:
    trend = Trend()
    trend.take(timings(1, 50, draft_n=10, draft_n_accepted=5, store=StoreFigures(asked=9, hits=5)))
    trend.memory.append(0.5)
    trend.forget()
    assert not any((trend.speed, trend.accepted, trend.hit, trend.read))
    assert list(trend.memory) == [0.5]


def test_gauges() -> None:
    assert bar(0.5, 8) == ("████", "░░░░")
    assert bar(0.001, 8) == ("█", "░░░░░░░"), "a little is not nothing"
    assert (bar(None, 4), bar(0.0, 4), bar(9.0, 4)) == (("", "░░░░"), ("", "░░░░"), ("████", ""))
    assert spark([], 4) == "    "
    assert spark([0, 1, None, 2], 6) == "  ▁▅ █"
    assert spark([1, 2, 3, 4], 2) == "▆█"
    assert spark([0.5], 2, 1.0) == " ▅"
    assert spark([0.0, 0.0], 2) == "▁▁"


def test_what_was_found_and_chosen_has_its_reasons() -> None:
    device = Device(6, 8 * GIB, 5 * GIB, "aarch64", name="Orin Nano", jetson=True, slowed="power mode 15W")
    machine = Machine(device, {"jetson.model": Reading("Orin Nano", "/proc/device-tree/model")})
    rows = found_rows(machine, 4 * GIB)
    assert texts(rows)["plan reserved"].endswith("768 MiB for other programs")
    assert texts(rows)["plan headroom"].endswith("3.2 GiB")
    assert texts(rows)["plan slowed by"].endswith("power mode 15W")
    assert "/proc/device-tree/model" in reasons(rows)["plan machine"]
    rows = plan_rows(LOADED)
    assert reasons(rows)["plan budget"] == "what is free, less 1.5 GiB for the rest of the machine"
    assert reasons(rows)["plan context"] == "asked for; F10 changes it, from the next start"
    assert all(row.why for row in rows)
    assert texts(plan_rows(None)) == {"plan plan": "plan          n/a: no model is loaded yet"}


def switches(snapshot: Snapshot, mode: str = "ar") -> list[Row]:
    app = SimpleNamespace(board=Board(snapshot), mode=mode, options=SimpleNamespace(request={}))
    return Switches(app, lambda _: None).rows()  # type: ignore[arg-type]


@pytest.mark.parametrize("exact", [True, False])
def test_switches_say_when_they_count_and_what_they_do_to_the_text(exact: bool) -> None:
    modes = (ModeCard("s2-exact", exact, drafts=True, summary="drafts"),)
    rows = switches(replace(LOADED, modes=modes), "s2-exact")
    said, why = texts(rows), reasons(rows)
    assert f"s2-exact {'=exact' if exact else '≈'} " in f"{said['mode']} "
    assert "lossy" not in said["mode"], "kernels that round otherwise are not lossy on purpose"
    assert said["mode"].endswith("next answer")
    assert ("never the text" if exact else "may change the text") in why["draft_experts"]
    assert "2 of 8" in said["draft_experts"]
    assert said["budget"].endswith("at once")
    assert "Enter asks for another" in why["budget"]
    assert all(row.switch for row in rows)


@pytest.mark.parametrize("mode", ["ar", "s2"])
def test_the_cap_is_marked_where_it_counts(mode: str) -> None:
    cards = (ModeCard("ar", True, drafts=False, summary="plain decode"), ModeCard("s2", False, True, "lossy"))
    rows = switches(replace(LOADED, modes=cards), mode)
    (cap,) = (row for row in rows if row.name == "cap")
    lossy = mode == "s2"
    said = texts(rows)["cap"]
    assert ("≈lossy" in said) is lossy
    assert said.endswith("next answer" if lossy else "in lossy modes")
    assert cap.pieces[1][1] == ("value" if lossy else "faint")
    assert "in lossy modes alone" in cap.why
    assert cap.switch
    assert ("≈lossy" in texts(rows)["draft_length"]) is lossy, "lengths change the text of lossy modes"


def test_reads_are_switched_where_experts_are_read() -> None:
    rows = switches(replace(LOADED, settings=replace(LOADED.settings, prefetch=False)))
    said, why = texts(rows), reasons(rows)
    assert "‹ on =exact ›" in said["resident_only"]
    assert "‹ off =exact ›" in said["prefetch"]
    for name in ("resident_only", "prefetch"):
        assert said[name].endswith("next answer")
        assert "never the text" in why[name]
    whole = switches(replace(LOADED, plan=replace(PLAN, store=False)))
    assert texts(whole)["prefetch"].endswith("n/a: this model is held whole")
    assert not {row.name for row in whole if row.switch} & {"resident_only", "prefetch"}


def test_a_model_that_is_held_whole_needs_a_reload() -> None:
    rows = switches(replace(LOADED, plan=replace(PLAN, store=False, budget_bytes=0), budget_bytes=0))
    budget = rows[-1]
    assert "no limit" in texts(rows)["budget"]
    assert texts(rows)["budget"].endswith("needs a reload")
    assert not budget.switch
    assert "F10" in budget.why
    dense = switches(replace(LOADED, model=replace(MODEL, is_moe=False)))
    assert texts(dense)["draft_experts"].endswith("n/a: a dense model")
    assert not any(row.switch for row in dense if row.name.startswith("draft"))
