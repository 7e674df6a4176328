"""Reuse-aware gating: how a verify pass leans towards the experts its positions share (S2-MoE, section
4.2), or has no others (MoE-Spec)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, isinf
from operator import mul

BUDGET = inf  # the beta under which no other expert can be chosen


@dataclass(frozen=True, slots=True)
class Reuse:
    """`cap` experts per layer are preferred, no fewer than the model's k, each position by `beta` times its
    own margin between the best expert and the first that is not chosen.

    With a beta of BUDGET they choose among those alone: a budget of experts, which go to where the pass has
    most probability, all positions alike. Lossy. The root is never biased. `by_prefix`: a draft's wish counts
    by the chance that all up to it is accepted; else, as in the paper, by the draft's confidence in that
    token alone.
    """

    cap: int
    beta: float
    by_prefix: bool = False

    @property
    def restricts(self) -> bool:
        """Whether the others cannot be chosen at all."""
        return isinf(self.beta)

    def confidences(self, claims: Sequence[float]) -> list[float]:
        """w_b of the root and of the drafts behind it, whose probabilities `claims` are."""
        if self.restricts:
            return [1.0] * (1 + len(claims))
        return [1.0, *(accumulate(claims, mul) if self.by_prefix else claims)]
