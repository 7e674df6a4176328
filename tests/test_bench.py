"""The benches run and say what they measured; their figures are for people, not for tests."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest

from engine.bench import main
from engine.bench.rowname import RowName
from engine.calibration import candidates
from engine.errors import BadRequest
from engine.model import read_model_info
from engine.paths import EMBEDDED_MODEL
from engine.request import Speculation


def rows_of(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, object]]:
    assert main([*argv, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_decode_compares_modes(capsys: pytest.CaptureFixture[str]) -> None:
    plain, drafted = rows_of(
        capsys, "decode", "--rows", "ar,s2-exact:fixed", "-r", "1", "-n", "24", "-p", "40", "-t", "1"
    )
    assert (plain["row"], drafted["row"], drafted["mode"]) == ("ar", "s2-exact:fixed", "s2-exact")
    assert plain["ratio"] == 1.0
    assert drafted["ratio_to"] == "ar"
    assert drafted["same_text"] is True
    assert isinstance(drafted["acceptance"], float)


def test_rows_draw_the_same_at_a_temperature(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["-r", "1", "-n", "24", "-p", "40", "-t", "1"]
    greedy, _ = rows_of(capsys, "decode", "--rows", "ar,s2-exact:fixed", *flags)
    plain, drafted = rows_of(capsys, "decode", "--rows", "ar,s2-exact:fixed", "--temp", "2", *flags)
    assert plain["same_text"] is True
    assert drafted["same_text"] is True
    assert drafted["acceptance"] != greedy["acceptance"]
    with pytest.raises(SystemExit) as left:
        main(["decode", "--rows", "stock,ar", "--temp", "0.8"])
    assert left.value.code == 2
    assert "--temp 0" in capsys.readouterr().err


def test_overhead_is_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(capsys, "overhead", "-r", "1", "-n", "24", "-t", "1")
    assert [row["row"] for row in rows] == ["ar", "s2-exact"]
    for row in rows:
        assert isinstance(row["python_share"], float)
        assert 0 < row["python_share"] < 1


def test_stream_goes_through_engine_and_interface(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of(capsys, "stream", "-r", "1", "-n", "40", "-t", "1")
    assert [row["row"] for row in rows] == ["loop", "engine", "ui"]
    assert all(isinstance(row["tok_s"], float) and row["tok_s"] > 0 for row in rows)


def test_calibrate_sets_predicted_and_measured_contexts_and_k_beside_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = rows_of(capsys, "calibrate", "-r", "1", "-n", "10", "-t", "1", "--budget", "9000%")
    passes = [row for row in rows if row["row"] == "pass"]
    assert passes[-1]["positions"] == "all"
    assert passes[-1]["count"] == sum(row["count"] for row in passes[:-1])  # type: ignore[misc]
    assert all(isinstance(row["budget_bytes"], int) and row["budget_bytes"] > 0 for row in passes)
    contexts = [row for row in rows if row["row"] == "context"]
    assert [row["prompt"] for row in contexts] == ["0", "1", "2", "3", "all"]
    for row in contexts:
        assert all(isinstance(row[name], float) and 0 <= row[name] <= 1 for name in ("shared", "apart"))  # type: ignore[operator]
    tried = [row["experts"] for row in rows if row["row"] == "k'"]
    assert tried == [*candidates(read_model_info(EMBEDDED_MODEL).n_expert_used)]


def test_an_unknown_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["decode", "--rows", "ar,fast"])
    assert left.value.code == 2
    assert "no row 'fast'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("stock", ("ar", {}, "")),
        ("ar-sync", ("ar", {}, "-sync")),
        ("s2-exact", ("s2-exact", {}, "")),
        ("s2-exact:utility", ("s2-exact", {"expansion": "utility"}, "")),
        ("s2-exact:tree@2", ("s2-exact", {"expansion": "tree", "draft_experts": 2}, "")),
        ("s2-exact@4", ("s2-exact", {"draft_experts": 4}, "")),
        ("s2:fixed@1-sync", ("s2", {"expansion": "fixed", "draft_experts": 1}, "-sync")),
        ("s2:cap=12:beta=0.75:length=7", ("s2", {"cap": 12, "beta": 0.75, "draft_length": 7}, "")),
    ],
)
def test_row_names(text: str, parts: tuple[str, dict[str, object], str]) -> None:
    name = RowName.parse(text, "-sync")
    assert (name.mode, name.settings, name.ending) == parts
    assert name.text == text


def test_a_row_goes_before_the_flags() -> None:
    flags = Namespace(draft_experts=3, draft_length=4)
    assert RowName.parse("s2-exact", "-sync").speculation(flags) == Speculation("s2-exact", 3, 4)
    told = RowName.parse("s2:fixed:cap=12@1", "-sync").speculation(flags)
    assert told == Speculation("s2", 1, 4, "fixed", cap=12)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "turbo",
        "ar:",
        "s2-exact:often",
        "s2-exact@",
        "s2-exact@0",
        "s2:cap",
        "s2:cap=no",
        "s2:k=2",
        "ar-nostore",
    ],
)
def test_row_names_that_are_none(text: str) -> None:
    with pytest.raises(BadRequest, match="no row") as caught:
        RowName.parse(text, "-sync")
    assert "rows are stock" in caught.value.hint
