"""Several processes that train one student, one a core: each on passes of its own, their weights averaged
now and then.

A pass is thousands of small operations, and two threads wait for each other after each of them, longer still
beside any other program. Two processes of one thread meet once in a minute: on two cores that others use as
well they read four times as many tokens.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.multiprocessing as processes

MEET_EVERY = 8  # steps
_WAIT_S = 1800.0  # a member that does not come in half an hour has died


class Team:
    """Member `rank` of `size`."""

    def __init__(
        self, rank: int = 0, size: int = 1, meeting: Any = None, board: torch.Tensor | None = None
    ) -> None:
        self.rank, self.size, self._meeting, self._board = rank, size, meeting, board

    @property
    def leads(self) -> bool:
        """Whether this member says and saves what all know."""
        return self.rank == 0

    @torch.no_grad()
    def average(self, weights: Sequence[torch.Tensor]) -> None:
        """Gives every member the mean of all members' weights."""
        if self._board is None:
            return
        at = 0
        for weight in weights:
            self._board[self.rank, at : at + weight.numel()].copy_(weight.flatten())
            at += weight.numel()
        self._meeting.wait(_WAIT_S)
        at = 0
        for weight in weights:
            weight.copy_(self._board[:, at : at + weight.numel()].mean(0).view_as(weight))
            at += weight.numel()
        self._meeting.wait(_WAIT_S)

    def agree(self, number: int) -> int:
        """The leader's number, for all."""
        if self._board is None:
            return number
        if self.leads:
            self._board[0, 0] = number
        self._meeting.wait(_WAIT_S)
        agreed = int(self._board[0, 0])
        self._meeting.wait(_WAIT_S)
        return agreed


def run(size: int, numbers: int, work: Callable[[Team], None]) -> None:
    """Does `work` in `size` processes that share `numbers` weights; returns when all are through."""
    if size == 1:
        work(Team())
        return
    board = torch.zeros(size, numbers).share_memory_()
    meeting = multiprocessing.get_context("spawn").Barrier(size)
    processes.spawn(_member, (size, meeting, board, work), nprocs=size)


def _member(rank: int, size: int, meeting: Any, board: torch.Tensor, work: Callable[[Team], None]) -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    work(Team(rank, size, meeting, board))
