"""What is remembered of the experts' use, and what is not believed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.heat import heat_file, read_heat, write_heat
from engine.model import read_model_info
from engine.paths import EMBEDDED_MODEL


def test_heat_comes_back(tmp_path: Path) -> None:
    heat = np.random.default_rng(1).random((3, 8)).astype(np.float32)
    file = tmp_path / "deep" / "heat.npy"
    write_heat(file, heat)
    write_heat(file, heat)
    found = read_heat(file)
    assert found is not None
    assert np.array_equal(found, heat)
    assert [path.name for path in file.parent.iterdir()] == ["heat.npy"]


@pytest.mark.parametrize("data", [b"", b"\x93NUMPY", b"x" * 999, b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}"])
def test_damaged_heat_is_no_heat(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "heat.npy"
    file.write_bytes(data)
    assert read_heat(file) is None


@pytest.mark.parametrize(
    "heat",
    [np.zeros(8, np.float32), np.zeros((2, 2)), np.full((2, 2), -1, np.float32), np.full((2, 2), np.nan)],
)
def test_heat_that_makes_no_sense_is_no_heat(tmp_path: Path, heat: np.ndarray) -> None:
    np.save(tmp_path / "heat.npy", heat)
    assert read_heat(tmp_path / "heat.npy") is None


def test_nothing_fails_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    write_heat(tmp_path / "file" / "heat.npy", np.ones((2, 2), np.float32))
    assert read_heat(tmp_path / "file" / "heat.npy") is None


def test_another_model_has_another_file(tmp_path: Path) -> None:
    info = read_model_info(EMBEDDED_MODEL)
    other = replace(info, size_bytes=info.size_bytes + 1)
    assert heat_file(info, tmp_path) == heat_file(info, tmp_path)
    assert heat_file(info, tmp_path) != heat_file(other, tmp_path)
