"""The programs that build: CMake, ninja and scikit-build-core of our own, and how they are run."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from s2build.cache import Cache
from s2build.children import Command, run
from s2build.console import Step
from s2build.machine import Compiler
from s2build.pip import make_venv, pip, pip_problem
from s2build.problem import SetupError
from s2build.recipe import TOOLS_LOCK, file_sha256

_STEERING = re.compile(r"(C|CXX|CPP|LD|CUDA)FLAGS$|(CMAKE|SKBUILD|GGML|LLAMA)_|NVCC_(APPEND|PREPEND)_FLAGS$")
_NINJA = re.compile(r"^\[(\d+)/(\d+)\]")
_FAILURES = (
    ("No space left on device", "the disk is full"),
    ("Killed signal terminated program", "a compiler ran out of memory: close other programs or add swap"),
    ("CUDA::cublas", "the CUDA toolkit lacks cuBLAS: install its libcublas-dev package"),
    ("virtual memory exhausted", "a compiler ran out of memory: close other programs or add swap"),
)


def build_tools(cache: Cache) -> Path:
    """A virtual environment with CMake, ninja and scikit-build-core, made once per lock file and Python."""
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    tools = cache.tools / f"{python}-{file_sha256(TOOLS_LOCK)[:20]}"
    if (tools / "complete").exists() and os.access(tools / "bin/python", os.X_OK):
        return tools
    with Step("build tools"):
        make_venv(tools)
        outcome = pip(tools, "install", "--no-deps", "--require-hashes", "-r", TOOLS_LOCK)
        if not outcome.ok:
            raise SetupError(f"cannot install CMake and ninja: {pip_problem(outcome.output)}")
        (tools / "complete").touch()
    return tools


def build_environment(tools: Path, compiler: Compiler, jobs: int) -> dict[str, str]:
    """The caller's, less what would steer the compilers behind the cache key's back."""
    kept = {name: value for name, value in os.environ.items() if not _STEERING.match(name)}
    return {
        **kept,
        "PATH": f"{tools / 'bin'}:{kept.get('PATH', os.defpath)}",
        "CC": compiler.c,
        "CXX": compiler.cxx,
        "CMAKE_GENERATOR": "Ninja",
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        "GIT_DIR": "/nonexistent",  # upstream asks for a commit and would get that of a repository around it
    }


def run_build(command: Command, title: str, log: Path, cwd: Path, environment: dict[str, str]) -> None:
    """Runs a build with ninja's count on its step's line and all it prints in `log`. Raises SetupError."""
    with Step(title) as step, log.open("w") as file:

        def on_line(line: str) -> None:
            file.write(line)
            if count := _NINJA.match(line):
                step.update(int(count.group(1)), int(count.group(2)), _file_of(line))

        outcome = run(command, on_line=on_line, cwd=cwd, env=environment)
        if not outcome.ok:
            raise SetupError(f"{title} did not build: {reason_of(outcome.output)}; log: {log}")


def _file_of(line: str) -> str:
    return line.rstrip().rpartition("/")[2].removesuffix(".o")


def reason_of(log: str) -> str:
    """What went wrong, from a build log: a known cause, else the first error it holds."""
    for sign, reason in _FAILURES:
        if sign in log:
            return reason
    errors = [
        line.strip() for line in log.splitlines() if re.search(r"\berror:|CMake Error", line, re.IGNORECASE)
    ]
    return errors[0] if errors else "no reason given"
