"""What this machine has to build with: compiler, processor features, memory, disk."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from s2build.children import first_line
from s2build.problem import SetupError

_OLDEST = {"gcc": 9, "clang": 10}  # the first with all of C++17 that llama.cpp uses
_JOB_BYTES = 1 << 30  # the largest translation units of libllama stay below this
_CUDA_JOB_BYTES = 2 << 30  # those of the CUDA backend
_DISK_BYTES = 1 << 30  # sources, objects and wheel of a CPU build, with room
_CUDA_DISK_BYTES = 4 << 30
_INSTALL_COMPILER = "sudo apt install g++ (Fedora: sudo dnf install gcc-c++)"


@dataclass(frozen=True)
class Compiler:
    """A C and a C++ compiler of one kind; `text` is what the C++ one says of itself."""

    c: str
    cxx: str
    text: str

    @property
    def family(self) -> str:
        return "clang" if "clang" in self.text else "gcc"

    @property
    def major(self) -> int:
        match = re.search(r"(?:version|\)) (\d+)\.", self.text)
        return int(match.group(1)) if match else 0


def find_compiler(machine: str = "") -> Compiler:
    """The compiler for `machine`, this one where none is named: what CC and CXX name, or the system's.

    Raises SetupError when there is none that will do.
    """
    if machine not in ("", platform.machine()):
        return _find_cross_compiler(machine)
    named = os.environ.get("CC"), os.environ.get("CXX")
    pairs = (
        [(named[0] or "cc", named[1])] if named[1] else [("cc", "c++"), ("gcc", "g++"), ("clang", "clang++")]
    )
    for c, cxx in pairs:
        c_path, cxx_path = shutil.which(c), shutil.which(cxx or "")
        if c_path and cxx_path:
            return checked(Compiler(c_path, cxx_path, first_line([cxx_path, "--version"])))
    raise SetupError(f"a C++ compiler is needed to build the native library: {_INSTALL_COMPILER}")


def _find_cross_compiler(machine: str) -> Compiler:
    c, cxx = (shutil.which(f"{machine}-linux-gnu-{name}") for name in ("gcc", "g++"))
    if not c or not cxx:
        package = f"g++-{machine.replace('_', '-')}-linux-gnu"
        raise SetupError(f"a compiler for {machine} is needed: sudo apt install {package}")
    return checked(Compiler(c, cxx, first_line([cxx, "--version"])))


def checked(compiler: Compiler) -> Compiler:
    """`compiler`, unless it is known to be too old. One that hides its version is given a try."""
    oldest = _OLDEST[compiler.family]
    if 0 < compiler.major < oldest:
        found = f"{compiler.cxx} is {compiler.family} {compiler.major}"
        raise SetupError(f"{found}, {oldest} or newer is needed: {_INSTALL_COMPILER}")
    return compiler


def parse_cpu_features(cpuinfo: str) -> str:
    """What `-march=native` depends on, from /proc/cpuinfo: sorted features and, on ARM, the core types."""
    found: set[str] = set()
    for line in cpuinfo.splitlines():
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in ("flags", "Features"):
            found.update(value.split())
        elif name in ("CPU implementer", "CPU part"):
            found.add(f"{name}={value}")
    return " ".join(sorted(found))


def cpu_features() -> str:
    return f"{platform.machine()} {parse_cpu_features(Path('/proc/cpuinfo').read_text())}"


def parse_available_bytes(meminfo: str) -> int:
    """Memory a new process can have, from /proc/meminfo."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else 0


def parallel_jobs(n_cpus: int, available_bytes: int, *, cuda: bool = False) -> int:
    """Compilers to run at once. Raises SetupError when there is no memory for even one."""
    needed = _CUDA_JOB_BYTES if cuda else _JOB_BYTES
    if available_bytes < needed:
        raise SetupError(
            f"building the native library needs {needed >> 20} MiB of free memory, "
            f"{available_bytes >> 20} MiB are free: close other programs or add swap"
        )
    return max(1, min(n_cpus, available_bytes // needed))


def jobs_here(*, cuda: bool = False) -> int:
    available = parse_available_bytes(Path("/proc/meminfo").read_text())
    return parallel_jobs(len(os.sched_getaffinity(0)), available, cuda=cuda)


def check_disk(folder: Path, *, cuda: bool) -> None:
    """Raises SetupError unless the file system of `folder` has room for a build."""
    needed = _CUDA_DISK_BYTES if cuda else _DISK_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SetupError(
            f"building the native library needs {needed >> 20} MiB in {folder}, {free >> 20} MiB are free: "
            "free some or point XDG_CACHE_HOME elsewhere"
        )
