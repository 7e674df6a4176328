"""Several writers at once, one process a core.

Writing is many small operations, and two threads meet after each of them: two processes of one thread write
half as much again, and a busy neighbour delays only one of them. So a shard is always written by one thread,
and the words do not depend on how many there are.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from training.progress import Progress
from training.trunk import Trunk
from training.writing import Talk, Writer

_TOKENS = 195.0  # of a conversation, about


@dataclass(frozen=True)
class Order:
    """Conversations to be written into one file. `name` for the lines of progress."""

    name: str
    path: Path
    talks: Sequence[Talk]
    seed: int


def write_all(trunk: Trunk, orders: Sequence[Order], slots: int, answer: int) -> None:
    """Writes what is ordered, `slots` conversations of a file at once, answers of up to `answer` tokens."""
    if trunk.device.type != "cpu":
        for order in orders:
            _write(trunk, order, slots, answer)
        return
    if not orders:
        return
    processes = min(torch.get_num_threads(), len(orders))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_write_here, trunk.path, trunk.dtype, order, slots, answer) for order in orders]
        for job in jobs:
            job.result()


def _write_here(path: Path, dtype: torch.dtype, order: Order, slots: int, answer: int) -> None:
    torch.set_num_threads(1)
    _write(Trunk(path, torch.device("cpu"), dtype), order, slots, answer)


def _write(trunk: Trunk, order: Order, slots: int, answer: int) -> None:
    progress = Progress(order.name, _TOKENS * len(order.talks))
    shelf = Writer(trunk, min(slots, len(order.talks)), answer).write(order.talks, order.seed, progress)
    shelf.save(order.path)
    progress.end()
