"""G1: with nothing switched on, the patched library computes what stock llama.cpp computes, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.bench.decode import stock_library
from engine.paths import EMBEDDED_MODEL


def digests(threads: int, library: Path | None) -> list[str]:
    environment = {**os.environ, **({"LLAMA_CPP_LIB_PATH": str(library)} if library else {})}
    command = [sys.executable, str(Path(__file__).with_name("bare.py")), str(EMBEDDED_MODEL), str(threads)]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=True, timeout=300)
    return result.stdout.split()


@pytest.mark.full
@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_switched_on_changes_nothing(threads: int) -> None:
    stock = digests(threads, stock_library())
    assert len(set(stock)) == len(stock) > 1
    assert digests(threads, None) == stock
