"""`bench fit`: engines without a flag, in memory cgroups where the kernel lets us make them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.bench import main
from engine.bench.cgroup import MemoryGroup, NotPermitted


def rows_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def limited() -> None:
    try:
        MemoryGroup.make(1 << 30).close()
    except NotPermitted as error:
        pytest.skip(error.line())


@pytest.mark.usefixtures("limited")
def test_the_embedded_model_starts_and_takes_what_was_planned(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--limits", "1G,none", "-n", "4", "--json"]) == 0
    rows = rows_of(capsys)
    assert [row["limit_bytes"] for row in rows] == [1 << 30, 0]
    for row in rows:
        assert row["error"] is None
        assert 0.7 < float(str(row["of_plan"])) <= 1.03
        assert row["hit"] == 1


@pytest.mark.usefixtures("limited")
def test_what_does_not_fit_is_said_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF")
    with pytest.raises(SystemExit, match="1"):
        main(["fit", "--limits", "48M", "-n", "4", "--json"])
    (row,) = rows_of(capsys)
    assert row["error"] == "killed for memory" or "memory" in str(row["error"])
    with pytest.raises(SystemExit, match="1"):
        main(["fit", "-m", str(broken), "--limits", "none", "--json"])
