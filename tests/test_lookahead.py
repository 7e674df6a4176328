"""Which guesses about the next layer's experts are worth a read: the decision, and on machines made up."""

from __future__ import annotations

from pathlib import Path

from native_build import STORE, built, sanitizer_flaw, started, system_compiler
from s2build.recipe import NATIVE


def test_guesses_are_worth_their_reads(tmp_path: Path) -> None:
    compiler = system_compiler()
    sanitizer = "plain" if sanitizer_flaw(compiler, "address", tmp_path) else "address"
    program = built(
        compiler, sanitizer, [STORE / "s2-lookahead.cpp", NATIVE / "tests/lookahead_check.cpp"], tmp_path
    )
    run = started([program], 120)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    assert run.stdout.count(": right\n") == 6
