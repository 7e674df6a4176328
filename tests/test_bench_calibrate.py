"""`bench calibrate`: where nothing limits it, and where there is nothing to find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from families import FAMILIES, write_family
from toys import write_llama

from engine.bench import main


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_family(tmp_path_factory.mktemp("calibrate") / "olmoe.gguf", FAMILIES["olmoe"])


def test_without_a_budget_each_kind_of_finding_is_there(
    capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    assert main(["calibrate", "-m", str(model), "-n", "6", "-r", "1", "-t", "1", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"pass", "context", "k'", "price"} <= {line["row"] for line in lines}
    assert {line["budget_bytes"] for line in lines if line["row"] == "pass"} == {0}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--draft-length", "0"], "--draft-length is 0 (1 to 31)"),
        (["-n", "1", "-r", "1", "-t", "1"], "answers are too short for a pass to be predicted (give -n more"),
    ],
)
def test_what_leaves_nothing_to_measure_is_a_usage_error(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["calibrate", "-m", str(model), *flags])
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_a_dense_model_has_no_draft_experts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["calibrate", "-m", str(write_llama(tmp_path / "toy.gguf"))])
    assert left.value.code == 2
    assert "is a dense model" in capsys.readouterr().err
