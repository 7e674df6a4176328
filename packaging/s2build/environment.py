"""The checkout's virtual environment: what is in it, and the quick look that says it is up to date."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from s2build.console import Step, say
from s2build.cuda import choose_preset, find_gpu, find_nvcc, find_toolkit, gpu_present
from s2build.machine import parse_cpu_features
from s2build.pip import make_venv, pip, pip_problem
from s2build.problem import SetupError
from s2build.recipe import NATIVE, REPOSITORY, file_sha256
from s2build.wheel import native_wheel

VENV = REPOSITORY / ".venv"
_PYTHON = VENV / "bin/python"
_STAMP = VENV / "s2chat-setup.json"
_LOCKS = {False: REPOSITORY / "packaging/requirements.lock", True: REPOSITORY / "packaging/dev.lock"}


@dataclass(frozen=True)
class Stamp:
    """What was last installed. `quick` covers every input; the others say which part a change is about."""

    dev: bool
    python: str
    lock: str
    wheel: str
    project: str
    quick: str

    @classmethod
    def read(cls) -> Stamp | None:
        """None unless the last set-up came to its end: an interrupted one has taken the stamp away."""
        try:
            return cls(**json.loads(_STAMP.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self) -> None:
        partial = _STAMP.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n")
        partial.replace(_STAMP)


def quick_key(*, cpu_only: bool) -> str:
    """Changes with every file the environment is made from and with what it is made for; takes milliseconds.

    The compiler is left out on purpose: upgrading it must not make the next start a build.
    """
    files = [REPOSITORY / "pyproject.toml", *REPOSITORY.glob("packaging/*.lock")]
    files += [path for path in NATIVE.rglob("*") if path.is_file() and path.suffix != ".md"]
    files += Path(__file__).parent.glob("*.py")
    digest = hashlib.sha256(str(REPOSITORY).encode())  # a venv does not survive being moved
    for path in sorted(files):
        digest.update(f"{path}\0".encode() + path.read_bytes())
    gpu = (find_nvcc() or "no toolkit") if gpu_present() and not cpu_only else ""
    digest.update(f"{gpu}\0{parse_cpu_features(Path('/proc/cpuinfo').read_text())}".encode())
    return digest.hexdigest()


def up_to_date(*, dev: bool, cpu_only: bool) -> bool:
    stamp = Stamp.read()
    return (
        stamp is not None
        and (stamp.dev or not dev)
        and os.access(_PYTHON, os.X_OK)
        and stamp.quick == quick_key(cpu_only=cpu_only)
    )


def set_up(*, dev: bool, cpu_only: bool) -> None:
    """Makes or mends the environment. Only what changed is done again; after an interruption, everything."""
    before = Stamp.read()
    dev = dev or (before is not None and before.dev)
    preset, notice = choose_preset(find_gpu(), find_toolkit(), cpu_only=cpu_only)
    if notice:
        say(notice)
    quick = quick_key(cpu_only=cpu_only)
    # First what can fail for want of a compiler or of memory, and takes longest.
    wheel = native_wheel(preset, keep_tree=dev)
    after = Stamp(
        dev=dev,
        python=_python_id(),
        lock=file_sha256(_LOCKS[dev]),
        wheel=file_sha256(wheel),
        project=file_sha256(REPOSITORY / "pyproject.toml"),
        quick=quick,
    )
    _STAMP.unlink(missing_ok=True)
    if before is None or before.python != after.python or not os.access(_PYTHON, os.X_OK):
        with Step("Python environment"):
            make_venv(VENV)
        before = None
    if before is None or before.lock != after.lock:
        install_locked(_LOCKS[dev])
    if before is None or (before.wheel, before.project) != (after.wheel, after.project):
        install_own(wheel if before is None or before.wheel != after.wheel else None)
    after.write()


def _python_id() -> str:
    """The Python the environment rests on, the same seen from inside and outside."""
    base = Path(sys.base_prefix).resolve()
    return f"{base} {sys.version_info.major}.{sys.version_info.minor}"


def install_locked(lock: Path) -> None:
    """Installs the packages of a lock file, each checked by its hash."""
    total = len(re.findall(r"^\S+==", lock.read_text(), re.MULTILINE))
    options = ("--require-hashes", "--no-deps", "--progress-bar", "off")
    with Step(f"Python packages ({lock.stem})") as step:
        outcome = pip(VENV, "install", *options, "-r", lock, on_line=_Collected(step, total))
        if not outcome.ok:
            raise SetupError(f"cannot install the Python packages: {pip_problem(outcome.output)}")


class _Collected:
    """Counts the packages pip reports while it collects them."""

    def __init__(self, step: Step, total: int) -> None:
        self._step = step
        self._total = total
        self._seen = 0

    def __call__(self, line: str) -> None:
        if line.startswith(("Collecting", "Requirement already", "Ignoring")):
            self._seen += 1
            self._step.update(self._seen, self._total)
        elif line.startswith("Installing"):
            self._step.update(self._total, self._total, "installing")


def install_own(wheel: Path | None) -> None:
    """Installs the native wheel (when given) and this checkout, in place."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--force-reinstall")
    with Step("s2chat"):
        outcome = pip(VENV, "install", *options, *([wheel] if wheel else []), "--editable", REPOSITORY)
        if not outcome.ok:
            raise SetupError(f"cannot install s2chat into {VENV}: {pip_problem(outcome.output)}")
