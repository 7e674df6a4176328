"""How tokens are drawn: as often as they are probable, alike from near-equal logits (s2-race.cpp)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from engine.grammar import Candidates
from engine.native import llama, race_sampler

Array = npt.NDArray[np.float32]
N = 6
LOGITS = np.log(np.array([0.4, 0.25, 0.15, 0.1, 0.07, 0.03], dtype=np.float32))


class Race:
    def __init__(self, seed: int) -> None:
        self.sampler: Any = race_sampler(seed)
        self._candidates = Candidates(N)

    def look(self, logits: Array, forbidden: list[int] | None = None) -> int:
        """What is drawn at this position; nothing moves on."""
        self._candidates.fill(logits)
        self._candidates.forbid(forbidden or [])
        self._candidates.apply(self.sampler)
        return self._candidates.selected

    def draw(self, logits: Array) -> int:
        token = self.look(logits)
        llama().llama_sampler_accept(self.sampler, token)
        return token


@pytest.fixture
def race() -> Iterator[Race]:
    one = Race(7)
    yield one
    llama().llama_sampler_free(one.sampler)


def test_tokens_come_as_often_as_they_are_probable(race: Race) -> None:
    count = 20_000
    found = np.bincount([race.draw(LOGITS) for _ in range(count)], minlength=N)
    expected = count * np.exp(LOGITS)
    assert float(((found - expected) ** 2 / expected).sum()) < 20.5, "chi-square, 5 degrees, 0.1 %"


def test_draws_do_not_hang_together(race: Race) -> None:
    drawn = np.array([race.draw(LOGITS) for _ in range(20_000)])
    pairs = np.zeros((N, N))
    np.add.at(pairs, (drawn[:-1], drawn[1:]), 1)
    share = np.bincount(drawn, minlength=N) / len(drawn)
    expected = np.outer(share, share) * (len(drawn) - 1)
    assert float(((pairs - expected) ** 2 / expected).sum()) < 53, "chi-square, 25 degrees, 0.1 %"


def test_near_equal_distributions_draw_equal_tokens_whatever_their_order(race: Race) -> None:
    p, q = np.exp(LOGITS), np.array([0.3, 0.31, 0.1, 0.15, 0.07, 0.07])
    apart = float(np.abs(p - q).sum() / 2)
    same = 0
    for _ in range(10_000):
        same += race.look(np.log(q).astype(np.float32)) == race.draw(LOGITS)
    assert same / 10_000 > (1 - apart) / (1 + apart) - 0.015


def test_a_position_keeps_its_numbers_until_a_token_is_accepted(race: Race) -> None:
    for _ in range(200):
        best = race.look(LOGITS)
        assert race.look(LOGITS) == best
        others = [token for token in range(N) if token != best]
        assert race.look(LOGITS, forbidden=others[:2]) == best, "it is still there"
        second = race.look(LOGITS, forbidden=[best])
        assert second != best
        assert race.look(LOGITS, forbidden=[best, *(set(others[:1]) - {second})]) == second
        race.draw(LOGITS)


def test_copies_go_on_alike_and_seeds_differ(race: Race) -> None:
    for _ in range(5):
        race.draw(LOGITS)
    bindings = llama()
    copy, other = Race(1), Race(8)
    bindings.llama_sampler_copy(race.sampler, copy.sampler)
    runs = [[one.draw(LOGITS) for _ in range(40)] for one in (race, copy, other)]
    assert runs[0] == runs[1] != runs[2]
    for one in (copy, other):
        bindings.llama_sampler_free(one.sampler)
