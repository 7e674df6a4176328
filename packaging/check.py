"""Builds what others install and tries it where nothing else is: `packaging/check [PART ...]`.

wheels: installed into a fresh environment for every Python of ours that is here (on PATH or pyenv's), without
a compiler, an index or a network. deb: the package goes through dpkg's whole life below an empty root:
installed, upgraded, removed, purged. gates: the tests of exactness, with each of the wheel's kernels that
this processor can run. arm64: wheels and package are cross-built, and the package is installed on an emulated
machine, where it answers with each of its kernels. Without a word all four.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sqlite3
import sys
import tempfile
import time
import zipfile
from contextlib import closing
from pathlib import Path

from s2build.artifact import check_wheels
from s2build.cache import Cache
from s2build.children import must, run
from s2build.console import say
from s2build.deb import ARCHITECTURES, make_deb
from s2build.dpkg import Dpkg
from s2build.emulation import PROCESSORS, make_emulated
from s2build.problem import SetupError
from s2build.recipe import REPOSITORY
from s2build.trial import Trial, without_network
from s2build.wheelhouse import PYTHONS, make_wheelhouse, s2chat_version

DIST = REPOSITORY / "dist"
_PARTS = ("wheels", "deb", "gates", "arm64")
_ARM64 = "aarch64"
_CHOOSE = "from engine.kernels import native_build; native_build().chosen"
_PROMPT_S = 2.0  # from the command to a prompt that takes text, on two cores


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="packaging/check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", choices=(*_PARTS, []), help="only this")
    what = parser.parse_args().what or _PARTS
    began = time.monotonic()
    here = platform.machine()
    try:
        with tempfile.TemporaryDirectory(prefix="s2chat-check-") as folder:
            if {"wheels", "deb", "gates"} & set(what):
                wheels = made_wheels(here)
            if "wheels" in what:
                try_wheels(wheels, Path(folder))
            if "deb" in what:
                try_deb(wheels, Path(folder))
            if "gates" in what:
                try_gates(wheels, Path(folder))
            if "arm64" in what and here != _ARM64:
                try_emulated(made_wheels(_ARM64), Path(folder), _ARM64)
    except SetupError as error:
        say(f"packaging/check: {error}")
        return 1
    say(f"all of it holds, {_since(began)}")
    return 0


def made_wheels(machine: str) -> Path:
    """The folder of wheels for one architecture, made and looked through."""
    began = time.monotonic()
    wheels = DIST / f"wheels-{ARCHITECTURES[machine]}"
    make_wheelhouse(wheels, machine, Cache.default())
    glibc = check_wheels(wheels, machine)
    say(f"{wheels.name}: {_megabytes(wheels)}, glibc {glibc} or newer, {_since(began)}")
    return wheels


def try_wheels(wheels: Path, folder: Path) -> None:
    """Installs them for each Python that is here; with the first, the program is tried in full."""
    pythons = [python for version in PYTHONS if (python := _python(version))]
    if not pythons:
        raise SetupError(f"none of Python {', '.join(PYTHONS)} is here")
    for number, python in enumerate(pythons):
        began = time.monotonic()
        venv = folder / f"venv{number}"
        must([python, "-I", "-m", "venv", venv])
        options = ("--isolated", "--quiet", "--no-index", "--find-links", wheels)
        nothing = {"PATH": "/nonexistent", "HOME": str(folder)}
        must(
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
    (library,) = venv.glob("lib/python3*/site-packages/llama_cpp/lib")
    answered = {kernels: _with_kernels(trial, kernels) for kernels in (*_kernels(library), "oldest")}
    for kernels, answer in answered.items():
        say(f"  kernels {kernels}: {answer or 'not on this machine'}")
    chosen = versions.partition("kernels ")[2].split()[0]
    if not answered[chosen] or not answered["oldest"]:
        raise SetupError("kernels that must run here are said not to")
    starts = [trial.chat() for _ in range(3)]
    prompt, ready = (min(start[part] for start in starts) for part in (0, 1))
    say(f"  prompt after {prompt:.1f} s, model after {ready:.1f} s")
    if prompt > _PROMPT_S:
        raise SetupError(f"a prompt takes {prompt:.1f} s, more than {_PROMPT_S:g} s")


def _with_kernels(trial: Trial, kernels: str) -> str:
    """An answer, and what the processor was used for; "" where it lacks what these kernels ask for."""
    try:
        said = trial.answer(S2CHAT_KERNELS=kernels)
    except SetupError as error:
        if "no such kernels run here" not in str(error):
            raise
        return ""
    loaded = json.loads(trial.said("doctor", "--json", S2CHAT_KERNELS=kernels))["native"]["value"]
    instructions = re.findall(r"(\w+) = 1", loaded["cpu_features"])
    return f"{said} [{', '.join(instructions)}]"


def try_deb(wheels: Path, folder: Path) -> None:
    """The whole life of the package, dpkg and its scripts at work below a root of its own."""
    deb = make_deb(wheels, DIST, platform.machine())
    later = make_deb(wheels, folder, platform.machine(), version=f"{s2chat_version()}+later")
    say(f"{deb.name}: {_megabytes(deb)}")
    root, home = folder / "root", folder / "debhome"
    dpkg = Dpkg.below(root)
    trial = _trial(root / "usr/bin/s2chat", home, root / "run/user/1000")
    began = time.monotonic()
    dpkg.do("--install", deb)
    say(f"  installed, {_megabytes(root)}, {_since(began)}")
    _model_once(root)
    say(f"  {trial.answer()}")
    trial.chat("What is a river?")
    trial.said("models", "pack", "--yes", _own_model(home, root))
    for what, action in (("upgrade", ("--install", later)), ("removal", ("--remove", "s2chat"))):
        before = _kept(trial)
        with trial.serving() as engine:
            dpkg.do(*action)
            if engine.poll() is None:
                raise SetupError(f"{what} leaves s2chat serve at work")
        _nothing_left(root, f"{what}", gone=what == "removal")
        if _kept(trial) != before:
            raise SetupError(f"{what} changed what is the user's: {before} became {_kept(trial)}")
        if what == "upgrade":
            say(f"  upgraded: {trial.answer()}")
            trial.said("models", "check", _own_model(home, root))
    dpkg.do("--purge", "s2chat")
    if _kept(trial) != before:
        raise SetupError("purging took something that is the user's")
    say(f"  removed and purged; kept: {', '.join(sorted(before))}")


def try_gates(wheels: Path, folder: Path) -> None:
    """The exactness tests of the checkout on the library of the wheel, once for each of its kernels."""
    python = REPOSITORY / ".venv/bin/python"
    if not run([python, "-c", "import pytest"]).ok:
        raise SetupError("the gates need what tests need: packaging/python packaging/setup.py --dev --cpu")
    (native,) = wheels.glob("llama_cpp_python-*.whl")
    with zipfile.ZipFile(native) as archive:
        archive.extractall(folder / "native")
    library = folder / "native/llama_cpp/lib"
    for kernels in (*_kernels(library), "oldest"):
        began = time.monotonic()
        there = {**os.environ, "LLAMA_CPP_LIB_PATH": str(library), "S2CHAT_KERNELS": kernels}
        if not run([python, "-c", _CHOOSE], cwd=REPOSITORY, env=there).ok:
            say(f"gates with {kernels}: not on this machine")
            continue
        gates = run([python, "-m", "pytest", "--quiet", "tests/gates"], cwd=REPOSITORY, env=there)
        if not gates.ok:
            raise SetupError(f"gates with {kernels} do not hold:\n{gates.output}")
        say(f"gates with {kernels}: {gates.output.strip().splitlines()[-1]}, {_since(began)}")


def try_emulated(wheels: Path, folder: Path, machine: str) -> None:
    """The package of another architecture on an emulated machine: a processor for each of its kernels."""
    deb = make_deb(wheels, DIST, machine)
    say(f"{deb.name}: {_megabytes(deb)}")
    there = make_emulated(machine, folder / machine, ("python3", "libstdc++6"))
    before, began = _bytes(there.root), time.monotonic()
    shutil.copy(deb, there.root / "s2chat.deb")
    processors = PROCESSORS[machine]
    dpkg = Dpkg.inside(there.entered(processors["oldest"]))
    dpkg.do("--install", "/s2chat.deb")
    (there.root / "s2chat.deb").unlink()
    say(f"  installed, {(_bytes(there.root) - before) / 1e6:.0f} MB, {_since(began)}")
    _model_once(there.root)
    home = Path("/root")
    for kernels, processor in processors.items():
        began = time.monotonic()
        entered = there.entered(processor)
        trial = Trial(Path("/usr/bin/s2chat"), home, Path("/run"), entered, timeout_s=900.0)
        if f"kernels {kernels}" not in " ".join(trial.said("--version").split()):
            raise SetupError(
                f"{processor.model} is not given the kernels {kernels}: {trial.said('--version')}"
            )
        say(f"  {kernels} on {processor.model}: {trial.answer()}, {_since(began)}")
    dpkg.do("--purge", "s2chat")
    _nothing_left(there.root, "purging", gone=True)
    if not (there.root / "root/.local/state/s2chat").exists():
        raise SetupError("purging took something that is the user's")
    say("  purged")


def _kernels(library: Path) -> list[str]:
    return list(json.loads((library / "s2-build.json").read_text())["kernels"])


def _model_once(root: Path) -> None:
    """Whether the model lies where it is installed and nowhere else, inside a wheel or outside."""
    files = [path for path in root.rglob("*.gguf") if not path.is_symlink()]
    astray = [path for path in files if path.parent != root / "usr/share/s2chat"]
    for wheel in root.glob("usr/lib/s2chat/wheels/*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            astray += [wheel / name for name in archive.namelist() if name.endswith(".gguf")]
    if not files or astray:
        raise SetupError(
            f"the model that ships lies a second time: {astray}" if files else "no model is there"
        )


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
    name = f"python{version}"
    own = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))
    found = [str(path) for path in (shutil.which(name), *own) if path]
    return next((path for path in found if run([path, "-I", "-c", "import ensurepip"]).ok), "")


def _megabytes(path: Path) -> str:
    return f"{_bytes(path) / 1e6:.0f} MB"


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if file.is_symlink() or file.is_file())


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"


if __name__ == "__main__":
    sys.exit(main())
