"""The gain: blocks without a draft are what they are, and a cold beginning makes no good end."""

from __future__ import annotations

import pytest

from engine.gain import Gain


def test_what_was_drafted_counts_by_plain_decode_and_what_was_not_by_itself() -> None:
    gain = Gain()
    for _ in range(10):
        gain.add(1, 10.0, 0.0, drafted=False)
    assert gain.over(10.0) is None, "nothing was drafted"
    gain.add(4, 20.0, 12.0, drafted=True)
    assert gain.over(0.0) is None, "plain decode is not known"
    assert gain.over(10.0) == pytest.approx((100 + 40) / 120)
    assert gain.over(5.0) == pytest.approx((100 + 20) / 120)


def test_few_drafts_among_plain_blocks_gain_next_to_nothing_whatever_plain_decode_was_thought_to_take() -> (
    None
):
    gain = Gain()
    for _ in range(99):
        gain.add(1, 10.0, 0.0, drafted=False)
    gain.add(2, 20.0, 9.0, drafted=True)
    assert gain.over(15.0) == pytest.approx(1.0, abs=0.02)


def test_a_draft_that_came_to_nothing_is_a_loss() -> None:
    gain = Gain()
    gain.add(2, 20.0, 10.0, drafted=True)
    gain.add(1, 15.0, 5.0, drafted=False)
    assert gain.over(10.0) == pytest.approx(30 / 35)
