"""Compiles checks of the native sources with the system's compiler, plain and sanitized."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from s2build.machine import Compiler, find_compiler
from s2build.problem import SetupError
from s2build.recipe import NATIVE

STORE = NATIVE / "s2/store"
SANITIZERS = {
    "plain": ["-O1"],
    "address": ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "thread": ["-O0", "-fsanitize=thread"],
}
ALONE = {"ASAN_OPTIONS": "", "TSAN_OPTIONS": "halt_on_error=1", "LSAN_OPTIONS": "", "UBSAN_OPTIONS": ""}


def system_compiler() -> Compiler:
    """The machine's compiler; skips the test where there is none."""
    try:
        return find_compiler()
    except SetupError as error:
        pytest.skip(str(error))


def built(compiler: Compiler, sanitizer: str, sources: Iterable[Path], folder: Path) -> Path:
    """A program of these sources. They become one: the standard library's headers are most of the work."""
    source, program = folder / "all.cpp", folder / "check"
    source.write_text("".join(f'#include "{path}"\n' for path in sources))
    compiled = compile_(compiler, source, program, sanitizer, "-Wall", "-Wextra", "-Werror", f"-I{STORE}")
    assert compiled.returncode == 0, compiled.stderr
    return program


def sanitizer_flaw(compiler: Compiler, sanitizer: str, folder: Path) -> str:
    """Why programs with this sanitizer do not work here; empty when they do."""
    source, program = folder / "nothing.cpp", folder / "nothing"
    source.write_text("#include <thread>\nint main() { std::thread([] {}).join(); }\n")
    compiled = compile_(compiler, source, program, sanitizer)
    if compiled.returncode:
        return compiled.stderr.strip().rpartition("\n")[2]
    run = started([program], 60)
    return run.stderr.strip().partition("\n")[0] if run.returncode else ""


def started(command: list[str | Path], timeout: float) -> subprocess.CompletedProcess[str]:
    """Runs a check to its end, without what this environment tells sanitizers. `timeout` in seconds."""
    return subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **ALONE}
    )


def compile_(
    compiler: Compiler, source: Path, program: Path, sanitizer: str, *flags: str
) -> subprocess.CompletedProcess[str]:
    options = ["-std=c++17", "-g", "-pthread", *SANITIZERS[sanitizer], *flags]
    return subprocess.run(
        [compiler.cxx, *options, source, "-o", program], capture_output=True, text=True, timeout=240
    )
