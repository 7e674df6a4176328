"""`s2chat models`: what it lists, asks, says and leaves behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stacks import assert_holds, write_stacks
from support import until
from test_terminal import Terminal
from toys import copy_embedded, write_llama

from app import exits
from app.cli import main
from engine.model import files_of, read_model_info
from engine.pack import pack_of, part_of, places
from engine.packing import Packing
from engine.paths import EMBEDDED_MODEL
from engine.size import size

Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return copy_embedded(tmp_path)


def models(*words: str | Path) -> int:
    return main(["models", *map(str, words)])


def listed(said: Said, *places: Path) -> dict[str, dict[str, object]]:
    assert models("list", "--json", *places) == exits.OK
    return {str(item["path"]): item for item in json.loads(said.readouterr().out)}


def test_the_model_that_ships_is_listed_and_what_benches_made_is_not(cache: Path, capsys: Said) -> None:
    made = cache / "s2chat" / "models" / "made.gguf"
    made.parent.mkdir(parents=True)
    write_llama(made)
    assert models() == exits.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == str(EMBEDDED_MODEL)
    assert size(read_model_info(EMBEDDED_MODEL).size_bytes) in lines[1]
    assert models("--json") == exits.OK
    assert [item["path"] for item in json.loads(capsys.readouterr().out)] == [str(EMBEDDED_MODEL)]
    assert models("list", made.parent) == exits.OK, "a folder that is named is looked into"
    assert "no experts to pack" in capsys.readouterr().out


def test_a_folder_is_listed_with_all_its_states(model: Path, tmp_path: Path, capsys: Said) -> None:
    files = write_stacks(tmp_path / "set.gguf", 5)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    (tmp_path / "notes.txt").write_text("no model")
    found = listed(capsys, tmp_path)
    assert set(found) == {str(model), str(files[0]), str(tmp_path / "broken.gguf")}
    assert "not packed" in str(found[str(model)]["words"])
    assert found[str(model)]["packed"] is None
    assert "cannot be used" in str(found[str(tmp_path / "broken.gguf")]["words"])
    assert models("pack", model, "--yes") == exits.OK
    place = places(model)[0]
    assert str(place) in capsys.readouterr().out
    assert listed(capsys, model)[str(model)]["packed"] == str(place)
    place.write_bytes(b"x")
    assert "is not used" in str(listed(capsys, model)[str(model)]["words"])
    place.rename(part_of(place))
    assert "packed in part" in str(listed(capsys, model)[str(model)]["words"])


def test_a_pack_is_made_checked_and_removed(model: Path, tmp_path: Path, capsys: Said) -> None:
    place = places(model)[0]
    assert models("check", model) == exits.ERROR
    assert "there is no pack of" in capsys.readouterr().err
    assert models("pack", model, "--yes") == exits.OK
    assert str(place) in capsys.readouterr().out
    catalogue = pack_of(model)
    assert catalogue is not None
    assert_holds(catalogue, *files_of(model))
    assert models("pack", model) == exits.OK  # nothing to ask
    assert "packed already" in capsys.readouterr().out
    assert models("check", model) == exits.OK
    assert f"{catalogue.n_layers * catalogue.n_expert} records" in capsys.readouterr().out
    with place.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\1")
    assert models("check", model) == exits.ERROR
    last = f"expert {catalogue.n_expert - 1} of layer {catalogue.tensors[-1].layer}"
    assert last in capsys.readouterr().err
    freed = place.stat().st_size
    assert models("rm", model) == exits.OK
    assert f"{freed:,} bytes" in capsys.readouterr().out
    assert set(tmp_path.iterdir()) == set(files_of(model))
    assert models("rm", model) == exits.OK
    assert "there is no pack" in capsys.readouterr().err


def test_nothing_large_is_written_unasked(model: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "models", "pack", model],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == exits.USAGE
    assert size(Packing(model).size) in done.stderr
    assert "free there" in done.stderr
    assert "--yes" in done.stderr
    assert set(tmp_path.iterdir()) == set(files_of(model))


@pytest.mark.parametrize(("key", "code"), [("y\r", exits.OK), ("\r", exits.CANCELLED)])
def test_a_terminal_is_asked(key: str, code: int, model: Path, home: Path) -> None:
    terminal = Terminal(home, "models", "pack", str(model))
    until(lambda: b"[y/N]" in terminal.seen)
    for word in (size(Packing(model).size), "free there", "models rm"):
        assert word.encode() in terminal.seen
    assert not places(model)[0].exists()
    terminal.type(key)
    assert terminal.wait() == code
    assert (pack_of(model) is not None) == (code == exits.OK)
    terminal.end()


# Packs slowly.
SLOW = """
import sys, time
from engine import pack, packing
from app.cli import main
pack._PIECE = 1 << 16
write = packing._write_all
def slow(*arguments):
    time.sleep(0.004)
    write(*arguments)
packing._write_all = slow
raise SystemExit(main(sys.argv[1:]))
"""


def test_ctrl_c_says_that_it_goes_on_from_there(model: Path, tmp_path: Path) -> None:
    part = part_of(places(model)[0])
    run = subprocess.Popen(
        [sys.executable, "-c", SLOW, "models", "pack", model, "--yes"], stderr=subprocess.PIPE, text=True
    )
    until(lambda: part.exists() and part.stat().st_size > 4 << 20)
    run.send_signal(signal.SIGINT)
    said = run.communicate(timeout=60)[1]
    assert run.returncode == exits.CANCELLED
    assert "stopped" in said
    assert "goes on from there" in said
    assert "Traceback" not in said
    assert part.exists()
    assert models("pack", model, "--yes") == exits.OK
    assert set(tmp_path.iterdir()) == {*files_of(model), places(model)[0]}
    assert models("check", model) == exits.OK


def test_progress_is_shown_on_a_terminal(model: Path, home: Path) -> None:
    terminal = Terminal(home, "models", "pack", str(model), "--yes")
    assert terminal.wait() == exits.OK
    until(lambda: b"packed in" in terminal.seen)
    assert f"% of {size(Packing(model).size)}".encode() in terminal.seen
    terminal.end()


def test_what_cannot_be_packed(tmp_path: Path, capsys: Said) -> None:
    assert models("pack", write_llama(tmp_path / "dense.gguf"), "--yes") == exits.MODEL
    assert "no experts to pack" in capsys.readouterr().err
    assert models("pack", tmp_path / "none.gguf", "--yes") == exits.MODEL
    assert "no such file" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["list", "pack", "rm", "check"])
def test_help_is_enough(action: str, capsys: Said) -> None:
    with pytest.raises(SystemExit, match="0"):
        models(action, "--help")
    text = capsys.readouterr().out
    assert "exit codes:" in text
    if action == "pack":
        for word in ("--yes", ".s2pack", "models rm", "Ctrl+C", "disk"):
            assert word in text
