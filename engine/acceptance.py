"""How often a draft of some probability survives, learned from what the target did with earlier ones.

The draft's own probability of a token is no chance of acceptance: at temperature 0 the target accepts where
its likeliest token is the same, and above it draws with the draft's own luck. So probabilities are sorted
into ten classes, and each class remembers how its tokens fared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_CLASSES = 10
_PRIOR = 4.0  # judged tokens that the draft's own probability counts for
_MEMORY = 0.995  # what a judgement is worth after the next one of its class


@dataclass(slots=True)
class _Class:
    judged: float = 0.0
    accepted: float = 0.0
    claimed: float = 0.0


class Acceptance:
    """One table for one kind of draft and way of drawing."""

    def __init__(self) -> None:
        self._classes = [_Class() for _ in range(_CLASSES)]

    def chance(self, probability: float) -> float:
        """The share of tokens drafted with about this `probability` that the target accepts, 0 to 1."""
        one = self._classes[_index(probability)]
        return (one.accepted + _PRIOR * probability) / (one.judged + _PRIOR)

    def judged(self, probability: float, accepted: bool) -> None:
        """The target looked at such a token, all before it having been accepted."""
        one = self._classes[_index(probability)]
        one.judged = one.judged * _MEMORY + 1.0
        one.accepted = one.accepted * _MEMORY + accepted
        one.claimed = one.claimed * _MEMORY + probability

    def learn(self, claims: Sequence[float], accepted: int, looked_at: int) -> None:
        """The target accepted the first `accepted` of a draft's tokens; it drew for `looked_at` of them."""
        for at, claim in enumerate(claims[: min(looked_at, accepted + 1)]):
            self.judged(claim, at < accepted)

    def table(self) -> list[tuple[float, float, float]]:
        """For each class: its mean probability, the share accepted, and how many judgements that rests on."""
        return [
            (one.claimed / one.judged, one.accepted / one.judged, one.judged)
            if one.judged
            else (0.0, 0.0, 0.0)
            for one in self._classes
        ]


def _index(probability: float) -> int:
    return min(_CLASSES - 1, max(0, int(probability * _CLASSES)))
