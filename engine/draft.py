"""What drafters propose. A drafter proposes; only the target decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from engine.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow the root, with the probability each claims, given all before it. `source` names
    the drafter.

    They are rows 1, 2, ... of the verify pass; row 0 is the root. `parents`: of a tree, the row that each
    token follows, which stands before it; empty for a chain. `drawn`: what the target drew along it, once it
    was verified.
    """

    tokens: list[int] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    source: str = ""
    parents: list[int] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)

    def after(self, row: int, token: int) -> int | None:
        """The row of `token` where it was drafted to follow `row`."""
        if not self.parents:
            return row + 1 if row < len(self.tokens) and self.tokens[row] == token else None
        for at, (parent, drafted) in enumerate(zip(self.parents, self.tokens, strict=True)):
            if parent == row and drafted == token:
                return at + 1
        return None

    def path(self, drawn: Sequence[int]) -> list[int]:
        """The rows behind the root that `drawn` tokens lead along."""
        rows: list[int] = []
        for token in drawn:
            row = self.after(rows[-1] if rows else 0, token)
            if row is None:
                break
            rows.append(row)
        return rows

    def by_fate(self, drawn: Sequence[int]) -> list[int]:
        """Its tokens: those that `drawn` ones lead along, and then the others."""
        path = self.path(drawn)
        others = [row for row in range(1, len(self.tokens) + 1) if row not in path]
        return [self.tokens[row - 1] for row in (*path, *others)]


class Drafter(Protocol):
    """Proposes what may follow. It leaves timeline and KV cache as it found them, also when it raises."""

    def begin(self) -> None:
        """The prompt is in the cache. What the drafter reads now counts as the prompt's."""
        ...

    def propose(self, root: int, length: int, target: Sampler) -> Draft:
        """Up to `length` tokens to follow `root`, the drawn token that is not in the cache yet."""
        ...

    def judged(self, draft: Draft, accepted: int, looked_at: int, ms: float) -> None:
        """What became of it: `accepted` of the `looked_at` tokens the target drew for. Draft and verify pass
        took `ms` together."""
        ...

    def close(self) -> None: ...
