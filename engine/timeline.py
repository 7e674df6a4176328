"""What stands in the KV cache, and from where it may be continued bit for bit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

ROWS_EXACT = 32  # passes of up to this many rows give each row the same bits whatever stands beside it


class Timeline:
    """The tokens in the cache, in order, and which of them came in one wide pass.

    Rows of a narrow pass do not depend on each other's company, so the cache may be cut anywhere among
    them. The rows of a wide pass belong together: a cut inside it means decoding it again from its first
    row, or the same prompt would give other bits the second time.

    From the first row on that a lossy pass wrote, the cache is not what plain decode would have left.
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._wide_starts: list[int] = []  # both sorted; pass i holds [start, end)
        self._wide_ends: list[int] = []
        self._lossy_from: int | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def copy(self) -> Timeline:
        other = Timeline()
        other.tokens = list(self.tokens)
        other._wide_starts, other._wide_ends = list(self._wide_starts), list(self._wide_ends)
        other._lossy_from = self._lossy_from
        return other

    def append(self, tokens: Sequence[int]) -> None:
        """One decode pass went through."""
        if len(tokens) > ROWS_EXACT:
            self._wide_starts.append(len(self.tokens))
            self._wide_ends.append(len(self.tokens) + len(tokens))
        self.tokens.extend(tokens)

    def mark_lossy(self, start: int) -> None:
        """A lossy pass wrote the cells from position `start` on."""
        if start < len(self) and (self._lossy_from is None or start < self._lossy_from):
            self._lossy_from = start

    def cut(self, length: int) -> None:
        """Forgets everything from position `length` on."""
        del self.tokens[length:]
        if self._lossy_from is not None and self._lossy_from >= length:
            self._lossy_from = None
        while self._wide_ends and self._wide_ends[-1] > length:
            self._wide_starts.pop()
            self._wide_ends.pop()

    def reusable(self, prompt: Sequence[int], *, exact: bool = True) -> int:
        """How many tokens of `prompt` need not be decoded again; at least its last one must be. `exact`: none
        that a lossy pass wrote, or what stands behind one."""
        shared = min(same_start(self.tokens, prompt), max(0, len(prompt) - 1))
        if exact and self._lossy_from is not None:
            shared = min(shared, self._lossy_from)
        block = bisect_right(self._wide_starts, shared) - 1
        if block >= 0 and shared < self._wide_ends[block]:
            return self._wide_starts[block]
        return shared


def same_start(mine: Sequence[int], theirs: Sequence[int]) -> int:
    """How many tokens the two have in common before they differ, or one ends."""
    for at, (one, other) in enumerate(zip(mine, theirs, strict=False)):
        if one != other:
            return at
    return min(len(mine), len(theirs))
