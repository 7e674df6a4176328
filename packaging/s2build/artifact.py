"""What must hold for whatever is given to others: old symbols, notices, nothing that may not be passed on."""

from __future__ import annotations

import platform
import re
import tempfile
import zipfile
from pathlib import Path

from s2build.children import run
from s2build.kernels import GLIBC
from s2build.problem import SetupError
from s2build.recipe import REPOSITORY

# NVIDIA's libraries have a licence of their own, and jetson-stats is AGPL.
_FORBIDDEN = re.compile(
    r"jetson[-_]stats|(^|/)jtop/|lib(cuda|cudart|cublas|nccl|nvrtc)\b|libggml-cuda", re.IGNORECASE
)
_SYMBOL = re.compile(r"\bGLIBC_(\d+)\.(\d+)")
_NEEDED = re.compile(r"^\s*NEEDED\s+(\S+)", re.MULTILINE)


def check_wheels(folder: Path, machine: str) -> str:
    """The oldest glibc that will do for all wheels, as in 2.34. Raises SetupError for what must not be."""
    objdump = _objdump(machine)
    notices = (REPOSITORY / "packaging/THIRD_PARTY.md").read_text().lower()
    newest = (0, 0)
    for wheel in sorted(folder.iterdir()):
        name = wheel.name.split("-")[0].lower().replace("_", "-")
        if not re.search(rf"(^|[^\w-]){re.escape(name)}($|[^\w-])", notices):
            raise SetupError(f"{name} is not among the notices of packaging/THIRD_PARTY.md")
        newest = max(newest, _check_wheel(wheel, objdump))
    if newest > GLIBC:
        raise SetupError(f"the wheels need glibc {newest[0]}.{newest[1]}")
    return f"{newest[0]}.{newest[1]}"


def _objdump(machine: str) -> str:
    """The one of the machine's own tools knows no other architecture."""
    return "objdump" if machine == platform.machine() else f"{machine}-linux-gnu-objdump"


def _check_wheel(wheel: Path, objdump: str) -> tuple[int, int]:
    """The glibc a wheel needs, (0, 0) where it holds no library."""
    newest = (0, 0)
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as temporary:
        names = archive.namelist()
        forbid(wheel, [wheel.name, *names])
        for name in names:
            if ".so" in name:
                newest = max(newest, _check_library(wheel, Path(archive.extract(name, temporary)), objdump))
    return newest


def _check_library(wheel: Path, library: Path, objdump: str) -> tuple[int, int]:
    read = run([objdump, "-p", "-T", library])
    if not read.ok:
        raise SetupError(f"{library.name} in {wheel.name} cannot be read: {read.output.strip()}")
    forbid(wheel, _NEEDED.findall(read.output))
    wanted = {(int(major), int(minor)) for major, minor in _SYMBOL.findall(read.output)}
    return max(wanted, default=(0, 0))


def forbid(artifact: Path, names: list[str]) -> None:
    """Raises SetupError where one of the names says that something may not be passed on."""
    for name in names:
        if _FORBIDDEN.search(name):
            raise SetupError(f"{artifact.name} holds or needs {name}, which may not be passed on")
