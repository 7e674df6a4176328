"""The branches of a draft as sequences of one unified KV cache.

A sequence is one way through the tree: the conversation, and behind it the cells from the root to a leaf. A
cell that several ways share carries all their numbers; a row attends to the cells that carry its first one.
So the conversation is shared with a sequence before that is used, as far as it is not yet: notes about cells,
no data.

Attention adds up a row's cells in the order in which they lie, in chunks of CHUNK cells, and leaves out what
it must not see. So a row comes out as in plain decode where its ancestors lie in order, each in the chunk
that its position falls into. After acceptance cell order is position order again: rejected cells go, and an
accepted branch moves to the places that plain decode would have given it. llama.cpp saves and restores the
cells of a sequence, bit for bit and to the first free places: one that has the branch's cells alone carries
them. That copies a few kilobytes, where decoding the branch once more would cost most of a pass.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.errors import NativeError
from engine.model import ModelInfo
from engine.native import llama
from engine.timeline import ROWS_EXACT

#: Sequences of a context that can branch. A divisor of the micro-batch: llama.cpp reserves memory for as many
#: rows as the next multiple.
SEQUENCES = 8

#: Leaves of a tree. One sequence carries accepted branches to their places.
BRANCHES = SEQUENCES - 1

#: Cells that attention of narrow passes adds up before it merges: S2_ATTN_CHUNK of s2-attention-size.h.
CHUNK = 256

#: Families the gates have tried with trees. What others keep beside their cells (an index over them, a state)
#: may not come out the same, so they draft chains. Not llama4: its window jumps, and what is behind it is not
#: saved with a branch.
_FAMILIES = frozenset(
    ("olmoe", "qwen2moe", "qwen3moe", "deepseek", "deepseek2", "gpt-oss", "granite_swa", "gemma4", "mellum")
)


def can_branch(model: Any, info: ModelInfo, n_outputs: int) -> bool:
    """Whether a context for `n_outputs` rows of logits may hold several sequences, at no cost in memory."""
    window = int(llama().llama_model_n_swa(model))  # 0 for none; it must see all of a branch
    return info.arch in _FAMILIES and n_outputs >= SEQUENCES and not 0 < window < ROWS_EXACT


def depths_of(parents: Sequence[int]) -> list[int]:
    """How far each row is from the root, row 0; row i + 1 follows row parents[i], which stands before it."""
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    return depths


def ways_of(parents: Sequence[int]) -> list[list[int]]:
    """For each row the ways that go through it, as numbers of leaves in the order of their rows."""
    rows = len(parents) + 1
    inner = set(parents) if rows > 1 else set()
    ways: list[list[int]] = [[] for _ in range(rows)]
    leaves = [row for row in range(rows) if row not in inner]
    for way, leaf in enumerate(leaves):
        row = leaf
        ways[row].append(way)
        while row:
            row = parents[row - 1]
            ways[row].append(way)
    return ways


def keeps_order(start: int, row: int, depth: int) -> bool:
    """Whether a row of a tree whose root is at `start` lies in the chunk of its position. Where all in front
    of it do, it sees its cells as in plain decode."""
    return (start + row) // CHUNK == (start + depth) // CHUNK


class Branches:
    """Sequence 0 is the conversation; the others share of it what they needed last. `context`: llama's."""

    def __init__(self, context: Any) -> None:
        self._llama, self._context = llama(), context
        self._memory = self._llama.llama_get_memory(context)
        self._shared = [0] * BRANCHES  # cells of the conversation, by sequence
        self._carrier = BRANCHES

    def share(self, branch: int, length: int) -> None:
        """`branch` begins with the first `length` cells of the conversation."""
        if branch and self._shared[branch] < length:
            self._llama.llama_memory_seq_cp(self._memory, 0, branch, self._shared[branch], length)
            self._shared[branch] = length

    def fork(self, parent: int, branch: int, start: int, end: int) -> None:
        """`branch`, new behind the conversation's `start` cells, goes with `parent` up to position `end`."""
        self.share(branch, start)
        self._llama.llama_memory_seq_cp(self._memory, parent, branch, start, end)

    def cut(self, length: int) -> bool:
        """Takes the cells from position `length` on away, of all sequences."""
        self._shared = [min(shared, length) for shared in self._shared]
        return bool(self._llama.llama_memory_seq_rm(self._memory, -1, length, -1))

    def accept(self, start: int, path: Sequence[int], ways: Sequence[Sequence[int]]) -> int:
        """Of the last pass, whose root is at `start`, the rows of `path` stay, in the cells of their
        positions; `ways` are the numbers of all its rows. Returns how many were in their places already.

        Raises NativeError where they cannot be moved; what is behind `start` must be cut then.
        """
        end, way = start + len(path), ways[path[-1]][0]
        for other in range(1 + max(max(numbers) for numbers in ways)):
            self._remove(other, end if other == way else start)
        in_place = next((i for i, row in enumerate(path) if row != i), len(path))
        if in_place < len(path):
            self._carry(way, start + in_place, end)
        if way:
            self._llama.llama_memory_seq_cp(self._memory, way, 0, start, end)
            self._remove(way, start)
        return in_place

    def end(self) -> None:
        """Only the conversation is left: what the others note of its cells takes memory."""
        for branch, shared in enumerate(self._shared):
            if shared:
                self._remove(branch, 0)
        self._shared = [0] * BRANCHES

    def _remove(self, branch: int, start: int) -> None:
        self._llama.llama_memory_seq_rm(self._memory, branch, start, -1)

    def _carry(self, branch: int, start: int, end: int) -> None:
        """The cells of `branch` at positions from `start` to `end`, the last there are, go to the first free
        ones, in their order. All else behind `start` is gone, so those are the cells of their positions."""
        self._llama.llama_memory_seq_cp(self._memory, branch, self._carrier, start, end)
        size = int(self._llama.llama_state_seq_get_size(self._context, self._carrier))
        data = np.empty(size, np.uint8)
        place = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        saved = self._llama.llama_state_seq_get_data(self._context, place, size, self._carrier)
        self._llama.llama_memory_seq_rm(self._memory, -1, start, -1)
        if not saved or not self._llama.llama_state_seq_set_data(self._context, place, size, self._carrier):
            raise NativeError("an accepted branch cannot be moved to its place in the KV cache")
        self._llama.llama_memory_seq_cp(self._memory, self._carrier, branch, start, end)
        self._remove(self._carrier, 0)
