"""k' for this model on this machine: how many experts a draft should use, found while answers are written.

A few blocks draft with each of some k'. What a step costs and how often the target agrees then says what a
token would take with drafts of the best length, and the cheapest k' is remembered for the next start. Exact
modes write the same text with any k', so nobody notices but by the speed; the first answer is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.experience import DraftKind, Experience
from engine.measured import write_measured
from engine.model import ModelInfo
from engine.prices import Prices

_TOKENS = 24  # the target looked at, for each k'
_IN_A_ROW = 4  # blocks of one k'
_CLEARLY = 0.97  # of what a token takes as it is: less, or it stays as it is


@dataclass(frozen=True, slots=True)
class Tried:
    """One k': milliseconds of a step, share of the looked-at tokens that were accepted, and milliseconds a
    token takes with drafts of `length`, the best one, by the prices of verify passes."""

    experts: int
    draft_ms: float
    acceptance: float
    length: int
    token_ms: float

    @classmethod
    def of(cls, experts: int, kind: DraftKind, acceptance: float, longest: int) -> Tried:
        step_ms = kind.usual_step_ms
        token_ms, length = min(
            (_token_ms(kind.prices, step_ms, acceptance, length), length) for length in range(1, longest + 1)
        )
        return cls(experts, step_ms, acceptance, length, token_ms)


def candidates(used: int) -> tuple[int, ...]:
    """The k' worth a try for a model of `used` experts per token."""
    return tuple(sorted({1, max(1, used // 4), max(1, used // 2)}))


def best(tried: Sequence[Tried], now: int) -> int:
    """The k' with the cheapest token; `now` unless another one is clearly cheaper."""
    cheapest = min(tried, key=lambda one: one.token_ms)
    current = next((one for one in tried if one.experts == now), None)
    if current is not None and cheapest.token_ms > _CLEARLY * current.token_ms:
        return now
    return cheapest.experts


class Calibration:
    """For drafts with `default` experts, where nobody asked for those. The decode thread's."""

    def __init__(
        self, info: ModelInfo, experience: Experience, *, default: int, longest: int, file: Path
    ) -> None:
        self.default = default
        self._experience, self._longest, self._file = experience, longest, file
        self._kinds = {k: experience.kind("self", k) for k in {*candidates(info.n_expert_used), default}}
        self._looked_at = dict.fromkeys(self._kinds, 0)
        self._accepted = dict.fromkeys(self._kinds, 0)
        self._trying, self._in_a_row = default, 0
        self.found: int | None = None

    @property
    def may_begin(self) -> bool:
        """Not in the first answer, and not once it is done."""
        return self.found is None and self._experience.prices.known

    def experts(self) -> int | None:
        """k' to try in this block; None when all have been."""
        if self.found is not None:
            return None
        if self._in_a_row == 0:
            self._trying = min(self._looked_at, key=lambda experts: self._looked_at[experts])
        self._in_a_row = (self._in_a_row + 1) % _IN_A_ROW
        return self._trying

    def judged(self, experts: int, accepted: int, looked_at: int) -> None:
        """A block that tried `experts`: of `looked_at` tokens the first `accepted` agreed."""
        self._looked_at[experts] += min(looked_at, accepted + 1)
        self._accepted[experts] += accepted
        if self.found is None and min(self._looked_at.values()) >= _TOKENS:
            tried = [self._tried(experts) for experts in sorted(self._kinds)]
            self.found = best(tried, self.default)
            write_measured(self._file, self.found, [asdict(one) for one in tried])

    def _tried(self, experts: int) -> Tried:
        acceptance = self._accepted[experts] / self._looked_at[experts]
        return Tried.of(experts, self._kinds[experts], acceptance, self._longest)


def _token_ms(prices: Prices, step_ms: float, acceptance: float, length: int) -> float:
    """Of a token, with drafts of `length` tokens that are accepted one after the other."""
    tokens = sum(acceptance**depth for depth in range(length + 1))
    return (length * step_ms + prices.plain_ms + length * prices.more_ms()) / tokens
