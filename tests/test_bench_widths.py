"""`bench widths`: what it says of the CPU, and of passes that do differ."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from families import FAMILIES, write_family

from engine.bench import main
from engine.bench.widths import _differences


@pytest.mark.parametrize("family", ["olmoe", "deepseek2"])
def test_on_the_cpu_every_width_has_the_bits_of_one_row(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, family: str
) -> None:
    model = write_family(tmp_path / f"{family}.gguf", FAMILIES[family])
    argv = ["widths", "-m", str(model), "-t", "1", "--text", "prose", "--positions", "40", "--json"]
    assert main(argv) == 0
    rows = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [row["width"] for row in rows] == [2, 3, 4, 8, 16, 32]
    for row in rows:
        assert row["positions"] == 40
        assert (row["same_bits"], row["same_top"], row["kl"], row["largest"]) == (1, 1, 0, 0)
        assert not row["on_gpu"]


def test_differences_are_counted() -> None:
    alone = np.array([[1.0, 2.0], [3.0, 1.0], [0.0, 0.0]], np.float32)
    together = np.array([[1.0, 2.0], [3.0, 3.5], [0.25, 0.0]], np.float32)
    found = _differences(alone, together)
    assert (found["positions"], found["same_bits"], found["same_top"]) == (3, 1, 2)
    assert found["largest"] == 2.5
    assert found["kl"] > 0.5


def test_wider_than_a_verify_pass_is_a_usage_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = write_family(tmp_path / "olmoe.gguf", FAMILIES["olmoe"])
    with pytest.raises(SystemExit) as left:
        main(["widths", "-m", str(model), "--widths", "2,33"])
    assert left.value.code == 2
    assert "passes have 32 rows at most" in capsys.readouterr().err
