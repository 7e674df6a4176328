"""How a bench says what it found."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median


def machine() -> str:
    """The processor and its usable cores, for the foot of a table."""
    import os

    name = platform.machine()
    for line in _cpuinfo():
        if line.startswith(("model name", "Model")):
            name = line.split(":", 1)[1].strip()
            break
    return f"{name}, {len(os.sched_getaffinity(0))} cores, {platform.system()} {platform.machine()}"


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def ratio(mine: Sequence[float], theirs: Sequence[float]) -> float:
    """Median of the pairwise ratios: what drifts over a run drifts in both."""
    return median(a / b for a, b in zip(mine, theirs, strict=True))


def show(rows: Sequence[Mapping[str, object]], *, as_json: bool, foot: str) -> None:
    """Prints `rows` as JSON lines, or as a table with `foot` below it."""
    if as_json:
        for row in rows:
            print(json.dumps(row), flush=True)
        return
    names = list(dict.fromkeys(name for row in rows for name in row if name not in ("bench", "model")))
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    print(foot)


def _cell(value: object) -> str:
    if value is None:
        return "–"
    return (
        f"{value:.3f}"
        if isinstance(value, float) and abs(value) < 10
        else f"{value:.1f}"
        if isinstance(value, float)
        else str(value)
    )
