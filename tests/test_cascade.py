"""Cascade: which draft length it settles on, how long for, and how rarely it tries what loses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from engine.cascade import Cascade
from engine.expansion import EXPANSIONS
from engine.experience import DraftKind
from engine.prices import Prices


def course(block: Callable[[int], tuple[int, float]], blocks: int, most: int = 8) -> list[int]:
    """The lengths it asks for; `block` says what one of that length gives: tokens and milliseconds."""
    cascade, asked = Cascade(), []
    for _ in range(blocks):
        asked.append(cascade.length(most))
        cascade.judged(*block(asked[-1]))
    return asked


def dear(length: int) -> tuple[int, float]:
    """Drafting never pays."""
    return 1 + length // 4, 10.0 + 9.0 * length


def test_every_length_is_tried_for_the_same_number_of_blocks() -> None:
    assert course(dear, 16) == [0] * 4 + [1] * 4 + [4] * 4 + [8] * 4
    assert course(dear, 12, most=1)[:8] == [0] * 4 + [1] * 4
    assert set(course(dear, 12, most=2)) == {0, 1, 2}


@pytest.mark.parametrize("best", [1, 4, 8])
def test_the_length_with_the_most_tokens_per_second_is_kept(best: int) -> None:
    asked = course(lambda length: (3, 5.0 if length == best else 10.0), 400)
    assert asked[16:32] == [best] * 16
    assert Counter(asked)[best] > 0.55 * len(asked)
    assert {0, 1, 4, 8} <= set(asked[32:64]), "what is best may change"


def test_draft_time_counts_not_tokens_alone() -> None:
    """The longest draft gives the most tokens per pass, and the fewest per second."""
    asked = course(lambda length: (1 + length, 10.0 + 12.0 * length), 200)
    assert asked[16:32] == [0] * 16


def test_what_loses_is_tested_ever_more_rarely() -> None:
    asked = course(dear, 2000)
    assert sum(length > 0 for length in asked) < 0.08 * len(asked)
    runs = [len(run) for run in "".join(".x"[length > 0] for length in asked).split("x") if run]
    assert runs[1] < runs[2] < runs[3]
    assert max(runs) <= 256 + 4


def test_what_gains_again_is_found_and_waits_no_longer_than_at_first() -> None:
    blocks = iter(range(10_000))
    asked = course(lambda length: (1 + length, 10.0) if next(blocks) > 300 else dear(length), 2000)
    assert asked[-64:].count(8) >= 32


def test_a_block_that_the_answers_end_cut_says_nothing() -> None:
    cascade = Cascade()
    for _ in range(12):
        cascade.judged(1, 1.0) if cascade.length(8) == 0 else cascade.judged(2, 10.0)
    assert cascade.length(8) == 8
    assert cascade.length(3) == 3
    cascade.judged(100, 0.001)
    for _ in range(4):
        assert cascade.length(8) == 8
        cascade.judged(1, 100.0)
    assert cascade.length(8) == 0


def test_it_is_an_expansion_that_drafts_what_it_says() -> None:
    tested = EXPANSIONS["cascade"](DraftKind(Prices()))
    assert [tested.limit(8) for _ in range(1)] == [0]
    for _ in range(4):
        tested.judged(1, 10.0)
    assert tested.limit(8) == 1
    assert tested.worth_drafting(0.0)
