"""Figures of routing: how evenly experts are used, how alike neighbouring tokens are, what a small cache
would hold.

Routes are I64 arrays [tokens, k] of one layer, tokens in order of time.
"""

from __future__ import annotations

import csv
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Routes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Run:
    """The routes of one answer, by layer: `before` those of its prompt, `decode` those of its tokens."""

    before: Mapping[int, Routes]
    decode: Mapping[int, Routes]


def reuse(runs: Iterable[Run], window: int = 4) -> float:
    """rho: distinct experts / (k * window) over windows of neighbouring decode tokens, averaged over layers.

    1 / window is the same experts again and again, 1 no expert twice.
    """
    by_layer: dict[int, list[float]] = {}
    for run in runs:
        for layer, routes in run.decode.items():
            for start in range(len(routes) - window + 1):
                part = routes[start : start + window]
                by_layer.setdefault(layer, []).append(len(np.unique(part)) / part.size)
    return float(np.mean([np.mean(found) for found in by_layer.values()])) if by_layer else float("nan")


def hits(runs: Iterable[Run], experts: int, share: float = 0.25) -> float:
    """Of the experts that decode tokens ask for, those that are among the layer's last used `share` of all.

    The cache is empty before a prompt, and the prompt's tokens warm it.
    """
    room, found, asked = max(1, int(experts * share)), 0, 0
    for run in runs:
        for layer, routes in run.decode.items():
            cache: OrderedDict[int, None] = OrderedDict()
            before = run.before.get(layer)
            for row in before.tolist() if before is not None else []:
                _use(cache, row, room)
            for row in routes.tolist():
                asked += len(row)
                found += sum(expert in cache for expert in row)
                _use(cache, row, room)
    return found / asked if asked else float("nan")


def _use(cache: OrderedDict[int, None], row: Sequence[int], room: int) -> None:
    for expert in row:
        cache.pop(expert, None)
        cache[expert] = None
    while len(cache) > room:
        cache.popitem(last=False)


def shares(runs: Iterable[Run], experts: int) -> tuple[float, float]:
    """Least and most used expert of any layer, against a fair share; prompts count too."""
    counts: dict[int, npt.NDArray[np.float64]] = {}
    for run in runs:
        for part in (run.before, run.decode):
            for layer, routes in part.items():
                seen = np.bincount(routes.ravel(), minlength=experts).astype(np.float64)
                counts[layer] = counts.get(layer, 0) + seen
    fair = [count / count.mean() for count in counts.values() if count.sum()]
    return min(float(part.min()) for part in fair), max(float(part.max()) for part in fair)


def read_trace(path: Path) -> tuple[list[Run], int]:
    """The runs of a published trace (columns turn, phase, step, layer, slot, expert), and how many
    experts a layer has."""
    experts = 0
    rows: dict[tuple[str, str, int], dict[int, list[int]]] = {}
    with open(path, encoding="utf-8", newline="") as file:
        lines = (line for line in file)
        head = []
        for line in lines:
            if not line.startswith("#"):
                break
            head.append(line)
        for field in " ".join(head).split():
            if field.startswith("n_expert="):
                experts = int(field.partition("=")[2])
        for row in csv.DictReader(lines, fieldnames=line.strip().split(",")):
            steps = rows.setdefault((row["turn"], row["phase"], int(row["layer"])), {})
            steps.setdefault(int(row["step"]), []).append(int(row["expert"]))
    runs = []
    for turn in sorted({turn for turn, _, _ in rows}):
        parts: list[dict[int, Routes]] = []
        for phase in ("0", "1"):
            found = {layer: steps for (of, at, layer), steps in rows.items() if (of, at) == (turn, phase)}
            parts.append({layer: _even(steps) for layer, steps in found.items()})
        runs.append(Run(*parts))
    return runs, experts


def _even(steps: Mapping[int, Sequence[int]]) -> Routes:
    """[tokens, k] of steps in order; a step of several tokens holds their experts one behind the other."""
    k = min(len(chosen) for chosen in steps.values())
    return np.concatenate([np.array(steps[step]).reshape(-1, k) for step in sorted(steps)]).astype(np.int64)
