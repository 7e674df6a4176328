"""`bench fit`: engines without a flag, in memory cgroups where the kernel lets us make them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from app import exits
from engine.bench import main
from engine.bench.cgroup import MemoryGroup, NotPermitted
from engine.bench.fit_sweep import budgets
from engine.paths import EMBEDDED_MODEL


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


def test_every_exact_mode_is_tried_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--limits", "none", "-n", "4", "--sweep", "4", "--json"]) == 0
    (row,) = rows_of(capsys)
    cells = row["cells"]
    assert isinstance(cells, list)
    tried = {(cell["mode"], cell["draft_experts"]) for cell in cells if cell["budget_bytes"] == 0}
    assert tried == {("auto", 0), ("ar", 0), ("ngram", 0), ("s2-exact", 1), ("s2-exact", 2), ("s2-exact", 4)}
    best = max(cell["tok_s"] for cell in cells if cell["mode"] != "auto")
    assert row["auto_of_best"] == pytest.approx(cells[0]["tok_s"] / best)
    assert all(cell["tokens"] == 3 * 4 for cell in cells[1:]), "three prompts"


def test_budgets_by_hand_lie_around_the_planned_one() -> None:
    assert budgets(planned=1000, taken=900, limit=2000) == [1000, 750, 1500]
    assert budgets(planned=0, taken=900, limit=0) == [0, 675]


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


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("limit", ["none", "1G"])
def test_one_that_is_ended_takes_its_engine_and_its_folder_along(limit: str, tmp_path: Path) -> None:
    """And says nothing of where in its code that was."""
    command = [
        sys.executable,
        "-c",
        _IN_FOLDER,
        str(tmp_path),
        "bench",
        "fit",
        "--limits",
        limit,
        "-n",
        "3000",
    ]
    bench = subprocess.Popen(command, cwd=EMBEDDED_MODEL.parents[1], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (engines := working_in(tmp_path)):
        assert bench.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    bench.terminate()
    _, said = bench.communicate(timeout=30)
    assert bench.returncode == exits.CANCELLED
    assert "Traceback" not in said
    assert not any(engine.is_running() for engine in engines)
    assert not list(tmp_path.iterdir())
    assert not list(Path("/sys/fs/cgroup").rglob(f"s2chat-bench-{bench.pid}-*"))


def working_in(folder: Path) -> list[psutil.Process]:
    engines = psutil.process_iter(["cmdline"])
    return [
        one
        for one in engines
        if "engine.server" in (words := one.info["cmdline"] or ())
        and any(word.startswith(str(folder)) for word in words)
    ]


#: The command line, with a folder for what is temporary.
_IN_FOLDER = """
import sys, tempfile
tempfile.tempdir = sys.argv.pop(1)
from app.cli import main
sys.exit(main())
"""
