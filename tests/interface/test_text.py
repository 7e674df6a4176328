"""Nothing a model or a file says reaches the terminal as control."""

from __future__ import annotations

import pytest

from app.text import Cleaner, clean, display, one_line


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain", "plain"),
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]52;c;aGk=\x1b\\after", "after"),
        ("\x1bPq#0\x1b\\after", "after"),
        ("\x9b2Jafter", "after"),
        ("\x1b[?1049hafter\x1bc", "after"),
        ("bell\x07 null\x00 back\x08", "bell null back"),
        ("one\r\ntwo\rthree", "one\ntwo\nthree"),
        ("tab\tstays", "tab\tstays"),
        ("flip\u202eped", "flipped"),
        ("猫 👩‍👩‍👧 é [/b]", "猫 👩‍👩‍👧 é [/b]"),
        ("lone \x1b", "lone "),
    ],
)
def test_clean(text: str, safe: str) -> None:
    assert clean(text) == safe


@pytest.mark.parametrize(
    "text", ["a\x1b[31mred\x1b[0m b", "\x1b]0;title\x07after\r\nnext", "x\x1b[1;2;3mz\x1b"]
)
def test_a_stream_is_cleaned_as_a_whole(text: str) -> None:
    for cut in range(len(text) + 1):
        cleaner = Cleaner()
        assert cleaner.feed(text[:cut]) + cleaner.feed(text[cut:]) + cleaner.close() == clean(text)


def test_a_stream_is_not_held_back_for_ever() -> None:
    cleaner = Cleaner()
    assert cleaner.feed("\x1b]" + "x" * 10_000).endswith("x")


def test_display_has_no_tabs() -> None:
    assert display("a\tb") == "a   b"


def test_one_line() -> None:
    assert one_line("a\n  b\x1b[1m\tc") == "a b c"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
