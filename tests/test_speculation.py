"""Prices, acceptance, unions and the choice among drafters: what they conclude from what they are told."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from engine.acceptance import Acceptance
from engine.draft import Draft
from engine.expansion import EXPANSIONS, Priced, Utility
from engine.experience import DraftKind, Experience
from engine.ngram import NgramDraft
from engine.prices import Load, Mean, PassPrice, Prices
from engine.request import EXPANSIONS as EXPANSION_NAMES
from engine.request import Request, Sampling, Speculation
from engine.timeline import Timeline
from engine.trial import Trial
from engine.union import ABSENT, COMING, THERE, ExpertUnion

rng = np.random.default_rng(5)


def cost(load: Load) -> float:
    return 4.0 + 0.7 * load.positions + 0.01 * load.resident + 0.1 * load.late + 0.3 * load.missing


def some_load() -> Load:
    positions = int(rng.integers(1, 9))
    experts = 216 * positions**0.6
    missing, late = experts * rng.uniform(0, 0.4), experts * rng.uniform(0, 0.1)
    return Load(positions, experts - missing - late, late, missing)


def test_the_fit_finds_the_prices_behind_noisy_passes() -> None:
    price = PassPrice()
    for _ in range(200):
        load = some_load()
        price.observe(load, cost(load) * rng.normal(1, 0.03))
    errors = [abs(price.predict(load) / cost(load) - 1) for load in (some_load() for _ in range(50))]
    assert np.median(errors) < 0.04
    assert max(errors) < 0.15
    assert price.coefficients["missing"] == pytest.approx(0.3, rel=0.25)


def test_the_fit_follows_a_disk_that_becomes_slow() -> None:
    price = PassPrice()
    for slow in (1.0, 5.0):
        for _ in range(150):
            load = some_load()
            price.observe(load, cost(load) + slow * 0.3 * load.missing)
    load = Load(4, 300, 20, 100)
    assert price.predict(load) == pytest.approx(cost(load) + 5 * 0.3 * 100, rel=0.1)


def test_one_wild_pass_does_not_spoil_the_fit() -> None:
    price = PassPrice()
    for _ in range(100):
        load = some_load()
        price.observe(load, cost(load))
    load = some_load()
    before = price.predict(load)
    price.observe(load, 5000.0)
    assert price.predict(load) < 2 * before


def test_thousands_of_passes_alike_upset_nothing() -> None:
    """Plain decode shows one direction only; nothing is learned of the others, nothing may grow there."""
    price = PassPrice()
    for kind in (Load(1, 12, 0, 0), Load(1, 200, 0, 16)):
        for i in range(5000):
            price.observe(kind, 10.0 + 0.1 * (i % 5))
        assert price.predict(kind) == pytest.approx(10.2, rel=0.05)
        assert all(abs(value) < 100 for value in price.coefficients.values())
    for _ in range(150):
        load = some_load()
        price.observe(load, cost(load))
    errors = [abs(price.predict(load) / cost(load) - 1) for load in (some_load() for _ in range(50))]
    assert np.median(errors) < 0.1


def plain(prices: Prices, passes: int = 20, ms: float = 10.0) -> None:
    for _ in range(passes):
        prices.passed(Load(1, 200, 0, 16), ms)


def test_nothing_is_drafted_before_plain_decode_was_measured() -> None:
    prices = Prices()
    priced = Priced(DraftKind(prices))
    assert not priced.limit(8)
    assert not priced.worth_drafting(1.0)
    assert not priced.worth_verifying(1.0, None)
    plain(prices)
    assert prices.plain_ms == pytest.approx(10.0)
    assert priced.limit(8) == 8
    assert priced.worth_verifying(1.0, None)


def test_a_mean_soon_forgets_a_cold_beginning_and_follows_later() -> None:
    mean = Mean()
    for value in (100.0, *[10.0] * 20):
        mean.add(value)
    assert mean() < 14
    for _ in range(40):
        mean.add(50.0)
    assert mean() == pytest.approx(50, rel=0.05)


def test_a_pass_that_a_draft_has_read_ahead_for_is_no_plain_decode() -> None:
    prices = Prices()
    plain(prices, ms=10.0)
    for _ in range(20):
        prices.drafted()
        prices.passed(Load(1, 216, 0, 0), 5.0)
    assert prices.plain_ms == pytest.approx(10.0)
    assert prices.plain_load.missing == pytest.approx(16)
    plain(prices, ms=20.0)
    assert prices.plain_ms > 15


def test_a_place_in_the_pass_is_dear_only_where_it_was_measured() -> None:
    prices = Prices()
    plain(prices)
    assert prices.more_ms() == 0, "passes of one row say nothing about a second one"
    for _ in range(60):
        load = some_load()
        prices.passed(load, cost(load))
    assert prices.more_ms() > 0


def test_a_candidate_must_pay_for_what_it_adds() -> None:
    prices = Prices()
    plain(prices)
    for _ in range(60):
        load = some_load()
        prices.passed(load, cost(load))
    kind = DraftKind(prices)
    priced, utility = Priced(kind), Utility(kind)
    cheap, dear = Load(1, 30, 0, 0), Load(1, 30, 0, 100)
    assert priced.worth_verifying(0.5, cheap)
    assert not priced.worth_verifying(0.5, dear)
    assert not priced.worth_verifying(0.01, cheap)
    kind.stepped(prices.plain_ms)
    assert priced.worth_verifying(0.6, cheap), "a step that has been made costs nothing more"
    assert not utility.worth_verifying(0.6, cheap), "to the letter of the paper it counts again"
    assert not priced.worth_drafting(0.9), "a step as dear as a pass never pays"


def test_a_union_counts_each_expert_once_and_where_it_is() -> None:
    where = np.full((2, 6), THERE, np.uint8)
    where[0, 3], where[1, 5] = ABSENT, COMING
    union = ExpertUnion(2, 6, where)
    first = np.array([[0, 3], [1, 5]], np.int32)
    assert union.news(first) == Load(1, resident=2, late=1, missing=1)
    union.add(first)
    assert union.news(first) == Load(1)
    assert union.news(np.array([[3, 4], [0, 1]], np.int32)) == Load(1, resident=2)


def test_acceptance_is_learned_by_how_sure_the_draft_was() -> None:
    table = Acceptance()
    assert table.chance(0.95) == pytest.approx(0.95)
    for i in range(300):
        table.judged(0.95, i % 2 == 0)
        table.judged(0.25, True)
    assert table.chance(0.95) == pytest.approx(0.5, abs=0.05)
    assert table.chance(0.25) > 0.9
    claimed, accepted, judged = table.table()[9]
    assert (claimed, accepted) == (pytest.approx(0.95), pytest.approx(0.5, abs=0.02))
    assert judged > 100


def test_what_loses_is_tried_ever_more_rarely_and_what_gains_goes_on() -> None:
    trial, tries = Trial(), 0
    for _ in range(4000):
        if trial.due():
            tries += 1
            trial.result(-5.0)
    assert 4 <= tries <= 20
    while not trial.due():
        pass
    trial.result(8.0)
    course = "".join("x" if trial.due() else "." for _ in range(600))
    stops = [run for run in course.strip(".").split("x") if run]
    assert len(stops) >= 3, "left out now and then, to be compared with"
    assert {len(stop) for stop in stops} == {8}
    assert course.count("x") > 0.9 * len(course)


class Chat:
    """A timeline and what was drawn last, as the decode loop leaves them."""

    def __init__(self, prompt: list[int]) -> None:
        self.timeline = Timeline()
        self.timeline.append(prompt)
        self.experience = Experience()
        plain(self.experience.prices)
        request = Request(tuple(prompt), Sampling(temperature=0.0), Speculation("ngram"))
        self.drafter = NgramDraft(self, request, self.experience)  # type: ignore[arg-type]

    def propose(self, *drawn: int, length: int = 8) -> list[int]:
        """`drawn` since the last call: all but the last are in the cache."""
        self.timeline.append(drawn[:-1])
        self._root = drawn[-1]
        draft = self.drafter.propose(drawn[-1], length, SimpleNamespace())  # type: ignore[arg-type]
        self.timeline.append(drawn[-1:])
        return draft.tokens


def test_lookup_goes_on_as_the_text_did_before() -> None:
    chat = Chat([1, 2, 3, 4, 5, 6, 7, 50, 51, 52])
    assert chat.propose(99) == []
    assert chat.propose(2, 3) == [], "two tokens are too few to go by"
    assert chat.propose(4) == [5, 6, 7, 50, 51, 52, 99, 2]
    assert chat.propose(5, length=2) == [6, 7]


def test_lookup_prefers_the_longest_match_to_the_latest() -> None:
    chat = Chat([9, 1, 2, 3, 10, 11, 12, 8, 1, 2, 3, 20, 21, 22, 9, 1, 2])
    assert chat.propose(3, length=3) == [10, 11, 12]


def test_lookup_that_fails_again_and_again_stops_proposing() -> None:
    chat = Chat([1, 2, 3, 4] * 3)
    for _ in range(20):  # until then a place in the pass is taken to cost nothing
        chat.experience.prices.passed(Load(4, 200, 0, 16), 13.0)
    assert chat.propose(1, 2, 3) == [4, 1, 2, 3]
    for claim in np.repeat([0.75, 0.85, 0.95], 200):
        chat.drafter.judged(Draft([4], [claim], "ngram"), 0, 1, 1.0)
    assert chat.propose(4, 1, 2, 3) == []


def test_every_expansion_has_its_name() -> None:
    assert tuple(EXPANSIONS) == EXPANSION_NAMES
