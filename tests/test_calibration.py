"""k' by calibration: what it concludes, when it asks, and what it makes of the file it left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from engine.calibration import Calibration, Tried, best, candidates
from engine.device import detect
from engine.experience import Experience
from engine.measured import measured_file, read_measured, write_measured
from engine.model import ModelInfo, read_model_info
from engine.paths import EMBEDDED_MODEL
from engine.plan import Wishes, make_plan
from engine.prices import Load
from engine.seeds import MEASURED_HERE


@pytest.fixture(scope="module")
def info() -> ModelInfo:
    """A model that uses 8 experts per token."""
    return replace(read_model_info(EMBEDDED_MODEL), n_expert_used=8)


def experience(plain_ms: float = 10.0) -> Experience:
    """Of a session that has decoded plainly for a while, and verified a few drafts."""
    known = Experience()
    for _ in range(20):
        known.prices.passed(Load(1, 200, 0, 16), plain_ms)
    for _ in range(8):
        known.prices.passed(Load(4, 350, 0, 30), plain_ms * 1.3)
    return known


def run(
    calibration: Calibration, known: Experience, agree: dict[int, float], step_ms: dict[int, float]
) -> int:
    """Blocks of four drafts, of which the target accepts a share; how many it took."""
    owed = dict.fromkeys(agree, 0.0)
    for block in range(200):
        experts = calibration.experts()
        if experts is None:
            return block
        known.kind("self", experts).stepped(step_ms[experts])
        owed[experts] += 4 * agree[experts]
        accepted = min(4, int(owed[experts]))
        owed[experts] -= accepted
        calibration.judged(experts, accepted, 4)
    raise AssertionError("it never ends")


def test_the_values_tried_are_one_a_quarter_and_half() -> None:
    assert candidates(8) == (1, 2, 4)
    assert candidates(4) == (1, 2)
    assert candidates(6) == (1, 3)
    assert candidates(1) == (1,)


@pytest.mark.parametrize(
    ("agree", "step_ms", "expected"),
    [
        ({1: 0.9, 2: 0.9, 4: 0.9}, {1: 2.0, 2: 4.0, 4: 8.0}, 1),
        ({1: 0.2, 2: 0.5, 4: 0.95}, {1: 2.0, 2: 2.2, 4: 2.5}, 4),
        ({1: 0.3, 2: 0.9, 4: 0.92}, {1: 2.0, 2: 2.2, 4: 6.0}, 2),
    ],
)
def test_the_cheapest_token_wins(
    info: ModelInfo,
    tmp_path: Path,
    agree: dict[int, float],
    step_ms: dict[int, float],
    expected: int,
) -> None:
    known, file = experience(), tmp_path / "found" / "k.json"
    calibration = Calibration(info, known, default=2, longest=8, file=file)
    assert calibration.may_begin
    assert run(calibration, known, agree, step_ms) <= 60, "a few dozen tokens"
    assert calibration.found == expected
    assert not calibration.may_begin
    assert read_measured(file, info) is not None
    rows = json.loads(file.read_text())["tried"]
    assert [row["experts"] for row in rows] == [1, 2, 4]
    assert {row["experts"]: row["draft_ms"] for row in rows} == step_ms


def test_the_first_answer_is_left_alone(info: ModelInfo, tmp_path: Path) -> None:
    assert not Calibration(info, Experience(), default=2, longest=8, file=tmp_path / "k").may_begin


def test_what_is_hardly_better_changes_nothing() -> None:
    tried = [Tried(1, 2.0, 0.5, 2, 9.9), Tried(2, 3.0, 0.6, 3, 10.0), Tried(4, 5.0, 0.8, 4, 12.0)]
    assert best(tried, now=2) == 2
    assert best([replace(tried[0], token_ms=9.0), *tried[1:]], now=2) == 1
    assert best(tried, now=3) == 1, "one that was not tried is no yardstick"


def test_the_plan_takes_what_was_measured_here(info: ModelInfo, tmp_path: Path) -> None:
    device = detect()
    file = measured_file(info, device, tmp_path)
    assert make_plan(device, info, Wishes(), read_measured(file, info)).speculation.draft_experts == 2
    write_measured(file, 4, [])
    plan = make_plan(device, info, Wishes(), read_measured(file, info))
    assert (plan.speculation.draft_experts, plan.reasons["draft_experts"]) == (4, MEASURED_HERE)
    asked = make_plan(device, info, Wishes(draft_experts=3), read_measured(file, info))
    assert asked.speculation.draft_experts == 3


def test_another_model_and_another_machine_have_files_of_their_own(info: ModelInfo, tmp_path: Path) -> None:
    device = detect()
    files = {
        measured_file(one, machine, tmp_path)
        for one in (info, replace(info, size_bytes=info.size_bytes + 1), replace(info, n_expert_used=4))
        for machine in (device, replace(device, cores=device.cores + 1), replace(device, name="another"))
    }
    assert len(files) == 9


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff\xfe\x00", b"[]", b"[" * 100_000, b"null", b"4"),
        *(b'{"draft_experts": 0}', b'{"draft_experts": 99}', b'{"draft_experts": "2"}'),
        *(b'{"draft_experts": 2.0}', b'{"draft_experts": true}', b'{"draft_experts": null}', b'{"k": 2}'),
    ],
    ids=lambda content: content[:24].decode("latin1"),
)
def test_a_damaged_or_foreign_file_is_ignored(info: ModelInfo, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "k.json"
    file.write_bytes(content)
    assert read_measured(file, info) is None


def test_without_a_file_or_a_place_for_one_nothing_happens(info: ModelInfo, tmp_path: Path) -> None:
    assert read_measured(tmp_path / "none.json", info) is None
    assert read_measured(tmp_path, info) is None
    blocked = tmp_path / "file"
    blocked.touch()
    write_measured(blocked / "k.json", 2, [])
    assert list(tmp_path.iterdir()) == [blocked]
