"""The expert store by itself: passes over a model of random bytes, plain and sanitized.

S2_STORE_ROUNDS repeats what depends on chance with so many seeds, S2_STORE_SEED is the first of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from native_build import SANITIZERS, STORE, built, sanitizer_flaw, started, system_compiler
from s2build.recipe import NATIVE

SOURCES = [path for path in sorted(STORE.glob("s2-*.cpp")) if path.name != "s2-buffer.cpp"]  # it needs ggml
CASES = 22


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_every_byte_and_every_figure(sanitizer: str, tmp_path: Path) -> None:
    compiler = system_compiler()
    flaw = "" if sanitizer == "plain" else sanitizer_flaw(compiler, sanitizer, tmp_path)
    if flaw:
        pytest.skip(f"no {sanitizer} sanitizer here: {flaw}")
    program = built(compiler, sanitizer, [*SOURCES, NATIVE / "tests/store_check.cpp"], tmp_path)
    rounds = int(os.environ.get("S2_STORE_ROUNDS", "1"))
    run = started([program, tmp_path, os.environ.get("S2_STORE_SEED", "1"), str(rounds)], 240 * rounds)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    assert "WRONG" not in run.stdout
    assert run.stdout.count("right") >= CASES
