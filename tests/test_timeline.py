"""From where a KV cache may be continued bit for bit."""

from __future__ import annotations

import pytest

from engine.timeline import ROWS_EXACT, Timeline


def timeline(*passes: int) -> Timeline:
    """Passes of these widths over the tokens 0, 1, 2, …"""
    made = Timeline()
    for width in passes:
        made.append(range(len(made), len(made) + width))
    return made


def prompt(length: int) -> list[int]:
    return list(range(length))


@pytest.mark.parametrize("shared", range(1, 10))
def test_narrow_passes_may_be_cut_anywhere(shared: int) -> None:
    assert timeline(4, 1, 1, 4).reusable([*prompt(shared), 999, 998]) == shared


def test_a_pass_of_the_exact_width_is_narrow() -> None:
    assert timeline(ROWS_EXACT).reusable([*prompt(20), 999]) == 20
    assert timeline(ROWS_EXACT + 1).reusable([*prompt(20), 999]) == 0


def test_the_last_token_is_always_decoded_again() -> None:
    made = timeline(8)
    assert made.reusable(prompt(8)) == 7
    assert made.reusable(prompt(5)) == 4
    assert made.reusable(prompt(1)) == 0
    assert made.reusable([]) == 0


def test_a_wide_pass_is_read_again_from_its_start() -> None:
    made = timeline(10, 100, 5)
    assert made.reusable([*prompt(60), 999]) == 10
    assert made.reusable([*prompt(10), 999]) == 10
    assert made.reusable([*prompt(11), 999]) == 10
    assert made.reusable([*prompt(109), 999]) == 10


def test_behind_a_whole_wide_pass_it_goes_on() -> None:
    made = timeline(10, 100, 5)
    assert made.reusable([*prompt(110), 999]) == 110
    assert made.reusable([*prompt(113), 999]) == 113
    assert made.reusable([*prompt(115), 999, 998]) == 115


def test_a_prompt_that_ends_with_a_wide_pass_reads_it_again() -> None:
    """Its last token must be decoded, and stood in company."""
    assert timeline(512, 100).reusable(prompt(612)) == 512
    assert timeline(512, 100).reusable(prompt(512)) == 0


def test_wide_passes_side_by_side() -> None:
    made = timeline(512, 512, 40)
    for shared, start in ((511, 0), (512, 512), (700, 512), (1024, 1024), (1030, 1024), (1064, 1064)):
        assert made.reusable([*prompt(shared), -1, -1]) == start


def test_another_beginning_shares_nothing() -> None:
    assert timeline(4).reusable([9, 1, 2, 3]) == 0
    assert Timeline().reusable([1, 2]) == 0


def test_a_cut_forgets_tokens_and_the_passes_it_cuts() -> None:
    made = timeline(10, 100, 5)
    made.cut(112)
    assert len(made) == 112
    assert made.reusable([*prompt(111), -1]) == 111
    made.cut(110)
    assert made.reusable([*prompt(60), -1]) == 10, "the wide pass is still whole"
    made.cut(10)
    made.append(range(10, 14))
    assert made.tokens == prompt(14)
    assert made.reusable([*prompt(12), -1]) == 12, "the wide pass is gone"


def test_a_cut_to_nothing() -> None:
    made = timeline(100, 3)
    made.cut(0)
    assert (len(made), made.reusable(prompt(50))) == (0, 0)
    made.append(prompt(5))
    assert made.reusable(prompt(5)) == 4


def test_a_cut_beyond_the_end_changes_nothing() -> None:
    made = timeline(100)
    made.cut(200)
    assert len(made) == 100
    assert made.reusable([*prompt(100), -1]) == 100


def test_what_a_lossy_pass_wrote_is_not_for_exact_answers() -> None:
    made = timeline(10, 1, 4, 1, 200)
    made.mark_lossy(12)
    made.mark_lossy(15)  # what stands behind a lossy cell is lossy already
    assert made.reusable(prompt(14)) == 12
    assert made.reusable(prompt(300)) == 12
    assert made.reusable(prompt(14), exact=False) == 13
    assert made.copy().reusable(prompt(14)) == 12
    made.cut(13)
    assert made.reusable(prompt(14)) == 12
    made.cut(12)
    made.append([12, 13])
    assert made.reusable(prompt(14)) == 13


def test_a_mark_behind_the_end_marks_nothing() -> None:
    """No draft was accepted: the root's own row is what it is in any mode."""
    made = timeline(10, 1)
    made.mark_lossy(11)
    made.append([11, 12])
    assert made.reusable(prompt(14)) == 13
