"""Everything an installation needs as wheels in one folder, for every Python it may meet."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from pathlib import Path

from s2build.cache import Cache
from s2build.children import run
from s2build.console import Step
from s2build.kernels import GLIBC, portable_preset
from s2build.pip import pip, pip_problem
from s2build.problem import SetupError
from s2build.recipe import REPOSITORY
from s2build.tools import build_tools
from s2build.wheel import native_wheel

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
_PACKAGING = REPOSITORY / "packaging"
_REQUIREMENTS, _INSTALLER = _PACKAGING / "requirements.lock", _PACKAGING / "installer.lock"
_LOCKED = Path(__file__).with_name("locked.py")


def s2chat_version() -> str:
    match = re.search(r'^__version__ = "(.+)"', (REPOSITORY / "engine/__init__.py").read_text(), re.MULTILINE)
    assert match is not None
    return match.group(1)


def make_wheelhouse(folder: Path, machine: str, cache: Cache) -> None:
    """Fills `folder` anew: what others made, as locked, the native build for any `machine`, and s2chat."""
    native = native_wheel(portable_preset(machine), keep_tree=True, cache=cache)
    tools = build_tools(cache)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(_others(cache, tools, machine), folder)
    shutil.copy(native, folder)
    with Step("s2chat's own wheel"):
        options = ("--quiet", "--no-deps", "--no-index", "--find-links", folder)
        outcome = pip(tools, "wheel", *options, "--wheel-dir", folder, REPOSITORY)
        if not outcome.ok:
            raise SetupError(f"cannot build s2chat's wheel: {pip_problem(outcome.output)}")


def _others(cache: Cache, tools: Path, machine: str) -> Path:
    """The wheels of the lock files, downloaded once per lock."""
    locks = (_REQUIREMENTS, _INSTALLER)
    what = [machine, *PYTHONS, *(path.read_text() for path in (*locks, Path(__file__), _LOCKED))]
    key = hashlib.sha256("\0".join(what).encode()).hexdigest()[:20]
    kept = cache.wheelhouses / key
    if kept.exists():
        return kept
    cache.wheelhouses.mkdir(parents=True, exist_ok=True)
    with (
        Step("wheels of others") as step,
        tempfile.TemporaryDirectory(dir=cache.wheelhouses) as temporary,
    ):
        partial = Path(temporary) / "wheels"
        for number, python in enumerate(PYTHONS):
            step.update(number, len(PYTHONS), f"Python {python}")
            for lock in locks:
                _download(partial, tools, lock, python, machine)
        partial.rename(kept)
    return kept


def _download(folder: Path, tools: Path, lock: Path, python: str, machine: str) -> None:
    read = run([tools / "bin/python", "-I", _LOCKED, lock, python, machine])
    if not read.ok:
        raise SetupError(f"cannot read {lock.name}: {read.output}")
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(read.output)
        requirements.flush()
        platforms = [word for tag in _platforms(machine) for word in ("--platform", tag)]
        options = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-version", python)
        outcome = pip(tools, "download", *options, *platforms, "-d", folder, "-r", requirements.name)
        if not outcome.ok:
            raise SetupError(f"cannot download for Python {python}: {pip_problem(outcome.output)}")


def _platforms(machine: str) -> list[str]:
    """Tags of wheels that run with our oldest glibc, best first."""
    major, newest = GLIBC
    return [f"manylinux_{major}_{minor}_{machine}" for minor in range(newest, 4, -1)] + [
        f"manylinux{old}_{machine}" for old in ("2014", "2010", "1")
    ]
