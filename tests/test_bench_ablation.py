"""`bench ablation`: its rows, tables and drawings."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from families import FAMILIES, write_family

from engine.bench import main
from engine.bench.ablation_chart import bars, points

_SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("ablation") / "olmoe.gguf", FAMILIES["olmoe"])


def test_parts_of_the_method_are_measured_and_drawn(
    capfd: pytest.CaptureFixture[str], model: Path, tmp_path: Path
) -> None:
    argv = [
        "ablation",
        "-m",
        str(model),
        "--budget",
        "1G",
        "--figures",
        "4,8",
        "--tasks",
        "QA",
        "--each",
        "1",
    ]
    argv += ["-n", "12", "-r", "1", "-t", "1", "--warm", "2", "--draft-length", "3", "--cap", "6"]
    assert main([*argv, "--json", "--svg", str(tmp_path / "drawn")]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    timed = [line for line in lines if line["figure"] == "8"]
    assert timed[0]["row"] == "ar"
    assert timed[-1]["row"] == "s2:priced:cap=6:beta=0.75@2"
    assert timed[0]["ratio"] == 1
    assert all(line["tok_s"] > 0 and line["error"] is None for line in timed)
    assert all(line["same_text"] for line in timed[:-1])
    (table,) = (line for line in lines if line["figure"] == "table 4")
    assert table["what"] == "QA"
    assert table["positions"] == 12
    assert table["reuse"] < table["reuse_plain"]
    assert [file.name for file in (tmp_path / "drawn").iterdir()] == ["figure-8.svg"]


def test_other_methods_run_over_the_same_store(capfd: pytest.CaptureFixture[str], model: Path) -> None:
    argv = ["ablation", "-m", str(model), "--budget", "1G", "--figures", "relatives", "--tasks", "QA"]
    argv += [
        "--each",
        "1",
        "-n",
        "12",
        "-r",
        "1",
        "-t",
        "1",
        "--warm",
        "2",
        "--draft-length",
        "3",
        "--cap",
        "6",
    ]
    assert main([*argv, "--json"]) == 0
    lines = {line["what"]: line for line in map(json.loads, capfd.readouterr().out.splitlines())}
    assert len(lines) == 7
    assert all(line["tok_s"] > 0 and line["error"] is None for line in lines.values())
    assert all(line["same_text"] for what, line in lines.items() if "lossy" not in what)
    assert lines["SpecMoE"]["row"] == "s2-exact:fixed@4"
    assert lines["MoE-Spec, lossy"]["row"] == "moe-spec:cap=6@2"


def test_an_unknown_figure_is_a_usage_error(capsys: pytest.CaptureFixture[str], model: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["ablation", "-m", str(model), "--budget", "1G", "--figures", "7"])
    assert left.value.code == 2
    assert "of 3, 4, 8, 9, 10, relatives" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--draft-experts", "99"], "--draft-experts is 99 (1 to"),
        (["--draft-length", "0"], "--draft-length is 0 (1 to 31)"),
        (["--svg", "/dev/null/drawn"], "--svg /dev/null/drawn is no folder"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_measured(
    flags: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("engine.bench.ablation.Bench", None)
    with pytest.raises(SystemExit) as left:
        main(["ablation", "-m", str(model), "--budget", "1G", *flags])
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_bars_are_as_high_as_their_values() -> None:
    drawing = ElementTree.fromstring(bars("a < b", {"one": 1.0, "two": 2.0}))
    heights = [float(bar.attrib["height"]) for bar in drawing.iter(f"{_SVG}rect") if "x" in bar.attrib]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert "a < b" in [text.text for text in drawing.iter(f"{_SVG}text")]


def test_points_lie_where_their_axes_say() -> None:
    drawing = ElementTree.fromstring(points("t", "x", "y", {"s": [(30.0, 0.5), (10.0, 1.0)]}, joined=True))
    ticks = {text.text: text.attrib for text in drawing.iter(f"{_SVG}text")}
    (line,) = drawing.iter(f"{_SVG}polyline")
    (left, top), (right, low) = (
        [float(n) for n in place.split(",")] for place in line.attrib["points"].split()
    )
    assert left == pytest.approx(float(ticks["10"]["x"]), abs=0.1)
    assert right == pytest.approx(float(ticks["30"]["x"]), abs=0.1)
    assert top == pytest.approx(float(ticks["1"]["y"]) - 4, abs=0.1)
    assert top < low


def test_one_value_alone_is_drawn() -> None:
    assert "circle" in points("t", "x", "y", {"s": [(3.0, 0.0)]}, joined=False)
