"""Builds what others install and tries it where nothing else is: `packaging/check`.

The wheels are installed into a fresh environment for every Python of ours that is here, without a compiler,
an index or a network; then the package goes through dpkg's whole life below an empty root: installed,
upgraded, removed, purged.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from s2build.artifact import check_wheels
from s2build.cache import Cache
from s2build.children import run
from s2build.console import say
from s2build.deb import make_deb
from s2build.problem import SetupError
from s2build.recipe import REPOSITORY
from s2build.trial import Trial, without_network
from s2build.wheelhouse import PYTHONS, make_wheelhouse, s2chat_version

DIST = REPOSITORY / "dist"
_PROMPT_S = 2.0  # from the command to a prompt that takes text, on two cores


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="packaging/check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", choices=("wheels", "deb", []), help="only this")
    what = parser.parse_args().what or ("wheels", "deb")
    began = time.monotonic()
    wheels = DIST / "wheels"
    try:
        make_wheelhouse(wheels, platform.machine(), Cache.default())
        say(f"wheels: {_megabytes(wheels)}, glibc {check_wheels(wheels)} or newer, {_since(began)}")
        with tempfile.TemporaryDirectory(prefix="s2chat-check-") as folder:
            if "wheels" in what:
                try_wheels(wheels, Path(folder))
            if "deb" in what:
                try_deb(wheels, Path(folder))
    except SetupError as error:
        say(f"packaging/check: {error}")
        return 1
    say(f"all of it holds, {_since(began)}")
    return 0


def try_wheels(wheels: Path, folder: Path) -> None:
    """Installs them for each Python that is here; with the first, the program is tried in full."""
    pythons = [python for version in PYTHONS if (python := _python(version))]
    if not pythons:
        raise SetupError(f"none of Python {', '.join(PYTHONS)} is here")
    for number, python in enumerate(pythons):
        began = time.monotonic()
        venv = folder / f"venv{number}"
        _must([python, "-I", "-m", "venv", venv])
        options = ("--isolated", "--quiet", "--no-index", "--find-links", wheels)
        nothing = {"PATH": "/nonexistent", "HOME": str(folder)}
        _must(
            [*without_network(), venv / "bin/python", "-I", "-m", "pip", "install", *options, "s2chat"],
            nothing,
        )
        say(f"wheels with {Path(python).name}: installed, {_megabytes(venv)}, {_since(began)}")
        trial = _trial(venv / "bin/s2chat", folder / f"home{number}", folder / f"run{number}")
        say(f"  {trial.answer()}")
        if number == 0:
            try_program(trial, venv)
        shutil.rmtree(venv)


def try_program(trial: Trial, venv: Path) -> None:
    """Versions, every kernel this machine can run, and how soon a chat takes text."""
    versions = trial.said("--version")
    if "?" in versions:
        raise SetupError(f"--version does not know every part: {versions}")
    say("  " + ", ".join(versions.splitlines()))
    (facts,) = venv.glob("lib/python3*/site-packages/llama_cpp/lib/s2-build.json")
    for kernels in (*json.loads(facts.read_text())["kernels"], "oldest"):
        say(f"  kernels {kernels}: {_with_kernels(trial, kernels)}")
    starts = [trial.chat() for _ in range(3)]
    prompt, ready = (min(start[part] for start in starts) for part in (0, 1))
    say(f"  prompt after {prompt:.1f} s, model after {ready:.1f} s")
    if prompt > _PROMPT_S:
        raise SetupError(f"a prompt takes {prompt:.1f} s, more than {_PROMPT_S:g} s")


def _with_kernels(trial: Trial, kernels: str) -> str:
    try:
        said = trial.answer(S2CHAT_KERNELS=kernels)
    except SetupError as error:
        if "no such kernels run here" not in str(error):
            raise
        return "not on this machine"
    loaded = json.loads(trial.said("doctor", "--json", S2CHAT_KERNELS=kernels))["native"]["value"]
    instructions = re.findall(r"(\w+) = 1", loaded["cpu_features"])
    return f"{said} [{', '.join(instructions)}]"


def try_deb(wheels: Path, folder: Path) -> None:
    """The whole life of the package, dpkg and its scripts at work below a root of its own."""
    deb = make_deb(wheels, DIST, platform.machine())
    later = make_deb(wheels, folder, platform.machine(), version=f"{s2chat_version()}+later")
    say(f"{deb.name}: {_megabytes(deb)}")
    dpkg = Dpkg(folder / "root")
    home = folder / "debhome"
    trial = _trial(dpkg.root / "usr/bin/s2chat", home, dpkg.root / "run/user/1000")
    began = time.monotonic()
    dpkg.do("--install", deb)
    say(f"  installed, {_megabytes(dpkg.root)}, {_since(began)}")
    say(f"  {trial.answer()}")
    trial.chat("What is a river?")
    trial.said("models", "pack", "--yes", _own_model(home, dpkg.root))
    for what, action in (("upgrade", ("--install", later)), ("removal", ("--remove", "s2chat"))):
        before = _kept(trial)
        with trial.serving() as engine:
            dpkg.do(*action)
            if engine.poll() is None:
                raise SetupError(f"{what} leaves s2chat serve at work")
        _nothing_left(dpkg.root, f"{what}", gone=what == "removal")
        if _kept(trial) != before:
            raise SetupError(f"{what} changed what is the user's: {before} became {_kept(trial)}")
        if what == "upgrade":
            say(f"  upgraded: {trial.answer()}")
            trial.said("models", "check", _own_model(home, dpkg.root))
    dpkg.do("--purge", "s2chat")
    if _kept(trial) != before:
        raise SetupError("purging took something that is the user's")
    say(f"  removed and purged; kept: {', '.join(sorted(before))}")


class Dpkg:
    """A package database and file tree of its own; maintainer scripts see it as DPKG_ROOT."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log"):
            (root / name).mkdir(parents=True)
        (root / "var/lib/dpkg/status").touch()

    def do(self, *words: str | Path) -> None:
        # The root holds no other package; that ours names the right ones is not shown here.
        forced = ("--force-script-chrootless", "--force-depends", "--force-not-root")
        log = f"--log={self.root}/var/log/dpkg.log"
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
        _must([*without_network(), "dpkg", f"--root={self.root}", *forced, log, *words], environment)


def _kept(trial: Trial) -> dict[str, object]:
    """What a person has after some use of the program."""
    with closing(sqlite3.connect(trial.history)) as history:
        (messages,) = history.execute("SELECT count(*) FROM messages").fetchone()
    packs = {path.name: path.stat().st_size for path in trial.home.rglob("*.s2pack")}
    if not messages or not packs:
        raise SetupError(f"nothing to be kept: {messages} messages, packs {packs}")
    return {"messages": messages, **packs}


def _own_model(home: Path, root: Path) -> str:
    """A copy of the model that ships where a person keeps models; the first of its files."""
    folder = home / "models"
    if not folder.exists():
        folder.mkdir()
        shipped = list(root.glob("usr/lib/s2chat/venv/lib/python3*/site-packages/assets/*.gguf"))
        if not shipped:
            raise SetupError("the package holds no model")
        for file in shipped:
            shutil.copy(file, folder)
    return str(min(folder.glob("*.gguf")))


def _nothing_left(root: Path, when: str, *, gone: bool) -> None:
    """No process, and after a removal no file, socket or lock."""
    venv = str(root / "usr/lib/s2chat/venv")
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes()
        except OSError:
            continue
        if words.startswith(venv.encode()):
            raise SetupError(f"{when} leaves a process: {words!r}")
    left = [path for path in (*root.glob("usr/lib/s2chat"), *root.glob("run/user/*/s2chat")) if gone]
    if left:
        raise SetupError(f"{when} leaves {left[0]}")


def _trial(program: Path, home: Path, runtime: Path) -> Trial:
    home.mkdir(parents=True)
    runtime.mkdir(parents=True)
    runtime.chmod(0o700)  # or it is not believed to be one
    return Trial(program, home, runtime)


def _python(version: str) -> str:
    """Such a Python, "" where there is none that runs."""
    found = shutil.which(f"python{version}")
    works = found and run([found, "-I", "-c", "import ensurepip"]).ok
    return found if found and works else ""


def _must(command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment or os.environ
    )
    if done.returncode:
        raise SetupError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def _megabytes(path: Path) -> str:
    files = path.rglob("*") if path.is_dir() else [path]
    return f"{sum(file.lstat().st_size for file in files if not file.is_dir()) / 1e6:.0f} MB"


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
