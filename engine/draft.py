"""What drafters propose. A drafter proposes; only the target decides."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may follow the root, with the probability each claims, given all before it. `source` names
    the drafter."""

    tokens: list[int] = field(default_factory=list)
    claims: list[float] = field(default_factory=list)
    source: str = ""


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
