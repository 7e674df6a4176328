"""The panel of the speculation as text: every kind of token and expert has its sign, whatever is in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from textual.content import Content

from app.blockview import block_lines
from app.expertview import ABSENT, COMING, MISSED, THERE, USED, expert_lines, states
from app.labels import ModeLabel
from app.looks import Looks
from app.tokens import shown
from app.watchview import Watched, figures, watch_lines
from engine.events import Block, ExpertMap, Look, Timings

DRAFTED = Block("self", (" the", " lazy", " dog"), 1, (" a",), 9.0)
PLAIN = Block("", (), 0, (" word",), 5.0)
TIMINGS = Timings(
    predicted_n=50, predicted_ms=1000, draft_n=30, draft_n_accepted=21, verify_n=14, gain=0.83, context_n=90
)
HOSTILE = [
    "\x1b[2J",
    "\x1b]0;title\x07",
    "a\rb\x08\x00",
    "\x9b31m",
    "\u202edrowssap",
    "a\u200bb\u2066",
    "[red]x[/]",
    "[@click=app.quit]x[/]",
    "\ud800",
    "\U000e0041",
]


def plain(lines: Sequence[Content]) -> list[str]:
    return [line.plain for line in lines]


def watched(*blocks: Block, experts: ExpertMap | None = None) -> Watched:
    looks = Looks()
    looks.take(Look(blocks, 0, experts))
    return Watched(looks, ModeLabel("s2-exact", exact=True), TIMINGS)


def experts_of(layers: int, each: int, *, disk: bool = False) -> ExpertMap:
    """Every fourth expert was used; on disk are those of the second half of each layer."""
    places = [expert for _ in range(layers) for expert in range(each)]
    used = bits([place % 4 == 0 for place in places])
    if not disk:
        return ExpertMap(layers, each, used)
    there = bits([place < each // 2 for place in places])
    return ExpertMap(layers, each, used, there, bits([place == each - 1 for place in places]))


def bits(values: list[bool]) -> bytes:
    text = "".join("01"[value] for value in values)
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


# Tokens


@pytest.mark.parametrize(
    ("token", "sign"),
    [
        (" word", " word"),
        ("  ", "␣␣"),
        ("\n\n", "⏎⏎"),
        ("\t", "⇥"),
        ("\x1b[2J", "␛[2J"),
        ("\x7f\x00", "␡␀"),
        ("\x85", "‹85›"),
        ("\u202e", "‹202e›"),
        ("\u0301e", "◌\u0301e"),
        ("❤\ufe0f", "❤‹fe0f›"),
        ("木", "木"),
        ("", ""),
    ],
)
def test_a_token_is_shown_as_what_it_is(token: str, sign: str) -> None:
    assert shown(token) == sign


def test_a_long_token_is_cut_by_cells_not_characters() -> None:
    assert shown("=" * 80, 10) == "=" * 9 + "…"
    assert Content(shown("木" * 40, 9)).cell_length <= 9


@pytest.mark.parametrize("token", HOSTILE)
def test_nothing_in_a_token_reaches_the_terminal(token: str) -> None:
    block = Block("self", (token, token), 1, (token,), 1.0)
    for line in watch_lines(watched(block, replace(PLAIN, own=(token,))), 70, 12):
        assert line.plain.isprintable()
        assert "\x1b" not in line.plain
        assert line.cell_length <= 70
    if token.isascii() and token.isprintable():
        assert token in "\n".join(plain(block_lines([block], 70, 5)))


# Blocks


def test_accepted_rejected_and_own_tokens_differ_without_colours() -> None:
    assert plain(block_lines([DRAFTED], 60, 3)) == ["self 1/3   ✓  the ✗  lazy│ dog +  a"]
    all_taken = Block("ngram", ("a", "b"), 2, (), 1.0)
    assert plain(block_lines([all_taken], 60, 3)) == ["ngram 2/2  ✓ a│b"]
    styles = {str(span.style) for line in block_lines([DRAFTED], 60, 3) for span in line.spans}
    assert {"$text-success", "$text-error strike", "bold"} <= styles


def test_blocks_without_a_draft_share_lines() -> None:
    lines = plain(block_lines([DRAFTED, PLAIN, PLAIN, PLAIN], 60, 5))
    assert lines[1:] == ["none ×3    +  word│ word│ word"]
    many = plain(block_lines([DRAFTED, *[PLAIN] * 60], 60, 9))
    assert len(many) == 3
    assert many[1].startswith("none ×60   + …│")
    assert len(block_lines([PLAIN] * 60, 60, 4)) == 4


def test_the_newest_blocks_stay() -> None:
    blocks = [replace(DRAFTED, own=(f"w{number}",)) for number in range(20)]
    lines = plain(block_lines(blocks, 60, 4))
    assert [line.split()[-1] for line in lines] == ["w16", "w17", "w18", "w19"]
    assert block_lines(blocks, 60, 0) == []
    long = replace(DRAFTED, drafted=(" word",) * 40)
    assert plain(block_lines([long, DRAFTED], 60, 4)) == plain(block_lines([DRAFTED], 60, 4))
    assert len(block_lines([DRAFTED, long], 60, 2)) == 2


@pytest.mark.parametrize("width", [1, 5, 12, 20, 46, 60, 200])
def test_long_blocks_are_folded_into_the_width(width: int) -> None:
    block = Block("self", tuple(f" 木word{number}" for number in range(31)), 20, (" end",), 1.0)
    lines = block_lines([block], width, 100)
    assert max(line.cell_length for line in lines) <= width
    if width >= 46:
        assert "end" in lines[-1].plain
        assert sum(line.plain.count("word") for line in lines) == 31


def test_blocks_that_stand_side_by_side_followed_each_other() -> None:
    looks = Looks()
    looks.take(Look((PLAIN, PLAIN)))
    looks.take(Look((DRAFTED,)))
    looks.take(None)
    assert list(looks.blocks) == [PLAIN, PLAIN, DRAFTED]
    looks.take(Look((DRAFTED, PLAIN), skipped=3))
    assert list(looks.blocks) == [DRAFTED, PLAIN]
    assert (looks.sources["self"], looks.sources[""], looks.length) == (1, 1, 3.0)


# Experts


def test_what_an_expert_is() -> None:
    used, there, coming = ([at in places for at in range(5)] for places in ((0, 1), (0, 2), (3,)))
    experts = ExpertMap(1, 5, bits(used), bits(there), bits(coming))
    assert states(experts) == [[USED, MISSED, THERE, COMING, ABSENT]]
    assert states(replace(experts, there=None, coming=None)) == [[USED, USED, THERE, THERE, THERE]]
    assert plain(expert_lines(experts, 40, 2)) == [
        "█▓░▒·",
        "▓ missed █ used ▒ reading ░ in memory · disk"[:39] + "…",
    ]


def test_a_place_for_every_expert_where_there_is_room() -> None:
    lines = plain(expert_lines(experts_of(30, 32), 46, 31))
    assert lines[:30] == ["█░░░" * 8] * 30
    assert lines[30] == "█ used ░ in memory"


def test_neighbours_share_places_before_bars_replace_them() -> None:
    lines = plain(expert_lines(experts_of(30, 128, disk=True), 46, 16))
    assert len(lines) == 16
    assert {len(line) for line in lines[:15]} == {43}
    assert {line[:8] for line in lines[:15]} == {"███░███░"}
    assert {line[-4:] for line in lines[:15]} == {"·▓▓▒"}


def test_bars_where_there_is_none() -> None:
    lines = plain(expert_lines(experts_of(30, 32, disk=True), 50, 4))
    assert lines == [
        "used      " + "▂" * 30 + " 25%",
        "in memory " + "▄" * 30 + " 50%",
        "reading   " + "▁" * 30 + " 3%",
        "missed    " + "▁" * 30 + " 12%",
    ]
    whole = plain(expert_lines(experts_of(30, 32), 80, 4))
    assert whole == ["used      " + "▂" * 30 + " 25%, all experts in memory"]
    assert len(plain(expert_lines(experts_of(94, 128), 56, 4))[0]) <= 56


@pytest.mark.parametrize("shape", [(1, 1), (1, 512), (94, 128), (3, 7)])
@pytest.mark.parametrize("size", [(1, 1), (10, 2), (46, 38), (300, 100), (20, 0)])
def test_any_map_fits_any_place(shape: tuple[int, int], size: tuple[int, int]) -> None:
    lines = expert_lines(experts_of(*shape, disk=True), *size)
    assert len(lines) <= size[1]
    assert all(line.cell_length <= max(size[0], 11) for line in lines)


# Figures


def test_the_figures_say_what_drafting_brought() -> None:
    one = watched(DRAFTED)
    assert figures(one) == [
        *("s2-exact =exact", "self-draft", "3.0 long", "acc 70%", "2.5 tokens/pass", "≈0.83× ar")
    ]
    measured = replace(one, plain_per_second=40.0)
    assert figures(measured)[-1] == "1.25× ar, measured"
    mixed = watched(DRAFTED, PLAIN, PLAIN, Block("ngram", ("a",), 1, ("b",), 1.0))
    assert figures(mixed)[1:3] == ["self-draft 1, ngram 1, none 2 of the last blocks", "2.0 long"]


def test_figures_that_do_not_exist_are_not_made_up() -> None:
    nothing = Timings(predicted_n=9, predicted_ms=100, verify_n=9)
    assert figures(replace(watched(PLAIN), timings=nothing)) == [
        *("s2-exact =exact", "nothing drafted", "1.0 tokens/pass")
    ]
    assert (
        figures(replace(watched(PLAIN), timings=nothing, plain_per_second=100.0))[-1] == "0.90× ar, measured"
    )
    plain = replace(watched(PLAIN), mode=ModeLabel("ar", exact=True), timings=nothing, plain_per_second=100.0)
    assert figures(plain)[-1] == "1.0 tokens/pass"
    assert figures(Watched()) == []
    assert figures(replace(watched(DRAFTED), timings=replace(TIMINGS, gain=None)))[-1] == "2.5 tokens/pass"


@pytest.mark.parametrize("size", [(58, 5), (56, 7), (76, 7), (46, 39), (30, 3), (5, 1), (0, 0)])
@pytest.mark.parametrize("disk", [False, True])
def test_the_panel_fits_its_place(size: tuple[int, int], disk: bool) -> None:
    blocks = [DRAFTED, *[PLAIN] * 9, DRAFTED] * 5
    lines = watch_lines(watched(*blocks, experts=experts_of(30, 32, disk=disk)), *size)
    assert len(lines) <= size[1]
    assert all(line.cell_length <= size[0] for line in lines)
    if size == (56, 7):
        text = "\n".join(plain(lines))
        assert "acc 70%" in text
        assert "✗  lazy" in text
        assert "used      ▂▂" in text


def test_an_empty_panel_says_why() -> None:
    lines = plain(watch_lines(Watched(mode=ModeLabel("ar", exact=True)), 60, 6))
    assert "Blocks show here while an answer is written." in lines
