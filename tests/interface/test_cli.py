"""The command line: help, exit codes, and what each command says without a chat."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from s2build.recipe import UPSTREAM_COMMIT, our_version
from support import paths_in

from app import exits
from app.cli import main
from app.flags import FLAGS
from engine import __version__
from engine.errors import BadRequest, Busy, ContextFull, EngineCrashed, ModelError, S2Error
from engine.kernels import library_folder
from engine.model import read_model_info
from engine.native import llama
from engine.paths import EMBEDDED_MODEL

COMMANDS = ("chat", "run", "status", "stop", "doctor", "plan", "models")


def s2chat(home: Path, *words: str, stdin: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "S2CHAT_HOME": str(home), **more},
    )


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    lines = dict(line.rsplit(" ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["s2chat"] == __version__
    assert lines["llama.cpp"] == UPSTREAM_COMMIT
    assert lines["llama-cpp-python"] == our_version()
    assert int(lines["hooks"]) == llama()._lib.s2_abi_version()
    assert lines["model"] == read_model_info(EMBEDDED_MODEL).name


def test_help_names_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    text = capsys.readouterr().out
    for word in (*COMMANDS, "bench", "S2CHAT_HOME"):
        assert word in text
    for code in (exits.OK, exits.ERROR, exits.USAGE, exits.MODEL, exits.ENGINE, exits.CANCELLED):
        assert f"\n  {code} " in text


@pytest.mark.parametrize("command", ["chat", "run"])
def test_help_of_a_command_names_every_flag(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    text = capsys.readouterr().out
    for flag in FLAGS:
        assert all(name in text for name in flag.names)
    assert "exit codes:" in text


@pytest.mark.parametrize(
    "words",
    [
        *(["run", "--temp", "hot"], ["run", "--temp", "nan"], ["run", "--top-p", "inf"]),
        *(["run", "-m", "\udcff.gguf"], ["run", "--mode", "magic"], ["fly"], ["run", "-n"], ["status", "x"]),
    ],
)
def test_wrong_words_are_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == exits.USAGE
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BadRequest("no"), exits.USAGE),
        (ContextFull("no"), exits.ERROR),
        (ModelError("no"), exits.MODEL),
        (EngineCrashed("no"), exits.ENGINE),
        (Busy("no"), exits.ENGINE),
        (S2Error("no"), exits.ERROR),
    ],
)
def test_errors_and_their_codes(error: S2Error, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    error.hint = "try \x1b[31mthis"
    assert exits.complain(error) == code
    assert capsys.readouterr().err == "s2chat: no\nhint: try this\n"


def test_a_chat_without_a_terminal_says_what_to_do(home: Path) -> None:
    for words in ([], ["chat"], ["-m", "x.gguf"]):
        done = s2chat(home, *words)
        assert done.returncode == exits.USAGE
        assert "s2chat run" in done.stderr
        assert done.stdout == ""


def test_status_and_stop_without_an_engine(home: Path) -> None:
    done = s2chat(home, "status")
    assert (done.returncode, done.stdout) == (exits.ENGINE, "no engine is running\n")
    done = s2chat(home, "status", "--json")
    assert json.loads(done.stdout) == {"state": "off"}
    assert s2chat(home, "stop").returncode == exits.OK
    assert not paths_in(home).socket.exists()


def test_doctor_finds_our_library_and_the_model(home: Path) -> None:
    done = s2chat(home, "doctor", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == exits.OK, found
    assert isinstance(found["native"]["value"]["hooks"], int)
    assert found["packages"]["value"]["textual"] == "8.2.8"
    assert found["paths"]["value"]["log"].endswith("state/engine.log")
    assert found["probes"]["memory.total"]["source"] == "/proc/meminfo"
    assert not any(found[name]["problem"] for name in ("native", "model", "packages", "paths"))


def test_doctor_goes_on_when_a_probe_fails(home: Path, tmp_path: Path) -> None:
    broken = tmp_path / "nvidia-smi"
    broken.write_text("#!/bin/sh\necho 'driver/library version mismatch'; exit 18\n")
    broken.chmod(0o755)
    (home / "state").write_text("a file where a folder should be")
    done = s2chat(home, "doctor", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert "version mismatch" in done.stdout
    assert "cannot be written" in done.stdout
    assert "✓ model" in done.stdout


def test_doctor_survives_a_library_that_kills_its_process(home: Path, tmp_path: Path) -> None:
    package = tmp_path / "llama_cpp"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "llama_cpp.py").write_text("import os; os.abort()")
    (package / "lib").symlink_to(library_folder())
    # The probe ignores the environment on purpose, so the crash is put where it looks.
    probe = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code = (
        "import app.doctor as doctor\n"
        f"doctor._NATIVE = {probe!r} + doctor._NATIVE\n"
        "raise SystemExit(doctor.examine(as_json=False))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "S2CHAT_HOME": str(home)},
    )
    assert done.returncode == exits.ERROR
    assert "signal 6" in done.stdout
    assert "✓ model" in done.stdout


def test_light_commands_load_nothing_heavy() -> None:
    code = (
        "import sys; from app.cli import _parser; _parser()\n"
        "heavy = {'textual', 'rich', 'numpy', 'llama_cpp', 'starlette', 'httpx'} & set(sys.modules)\n"
        "raise SystemExit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
