"""Text of an answer as it comes: whole characters, and nothing of a stop string."""

from __future__ import annotations

import pytest

from engine.session import Session
from engine.text import TextStream

TEXTS = {
    "emoji": "a😀b",
    "family": "👨‍👩‍👧‍👦!",
    "hindi": "नमस्ते दुनिया",
    "chinese": "你好，世界",
    "flags": "🇩🇪🇮🇳",
    "combining": "e\u0301a\u0308",
}


def stream(pieces: list[bytes], *stop: str) -> tuple[list[str], str, bool]:
    """What each piece released, what the end released, and whether it was stopped."""
    text = TextStream(stop)
    released = [text.push(piece) for piece in pieces]
    return released, text.finish(), text.stopped


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_characters_come_whole(text: str, size: int) -> None:
    released, rest, _ = stream(in_pieces(text.encode(), size))
    assert "".join(released) == text
    assert rest == ""
    assert "\ufffd" not in "".join(released)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_with_the_tokens_of_the_real_vocabulary(embedded: Session, text: str) -> None:
    """Its tokens cut such characters: no piece may release half of one."""
    tokens = embedded.vocab.tokenize(text, add_special=False, parse_special=False)
    assert len(tokens) > 1
    released, rest, _ = stream([embedded.vocab.piece(token) for token in tokens])
    assert "".join(released) + rest == text


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_the_end_inside_a_character_is_one_mark(kept: int) -> None:
    released, rest, _ = stream([b"ok ", "😀".encode()[:kept]])
    assert released == ["ok ", ""]
    assert rest == "\ufffd"


def test_a_character_that_is_never_finished_does_not_swallow_the_next() -> None:
    released, rest, _ = stream(["😀".encode()[:3], b"x"])
    assert "".join(released) + rest == "\ufffdx"


def test_a_lone_continuation_byte() -> None:
    released, rest, _ = stream([b"a", b"\x80", b"b"])
    assert released == ["a", "\ufffd", "b"]
    assert rest == ""


def test_bytes_that_are_never_utf8() -> None:
    released, rest, _ = stream([b"\xff\xfe", b"\xc0", b"\xed\xa0\x80", b"."])
    text = "".join(released) + rest
    assert text.strip("\ufffd") == "."
    text.encode()  # no surrogate: it can be written as JSON and to a file


# --- stop strings


def test_inside_one_piece() -> None:
    assert stream([b"one STOP two", b"three"], "STOP") == (["one ", ""], "", True)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_across_pieces(size: int) -> None:
    released, rest, stopped = stream(in_pieces(b"one STOP two", size), "STOP")
    assert ("".join(released), rest, stopped) == ("one ", "", True)


def test_a_beginning_is_held_back_and_released() -> None:
    assert stream([b"a ST", b"ART", b" b"], "STOP") == (["a ", "START", " b"], "", False)


def test_what_is_held_at_the_end_comes_out() -> None:
    assert stream([b"a STO"], "STOP") == (["a "], "STO", False)


def test_a_stop_string_that_begins_inside_a_false_one() -> None:
    """aab: after "aa" a third "a" releases one letter only."""
    assert stream([b"a", b"a", b"a", b"b", b"c"], "aab") == (["", "", "a", "", ""], "", True)


def test_of_several_the_first_in_the_text_counts() -> None:
    released, _, stopped = stream([b"x END y STOP"], "STOP", "END")
    assert (released, stopped) == (["x "], True)


def test_of_overlapping_ones_the_first_to_be_complete_counts() -> None:
    released, _, stopped = stream([b"x<", b"end", b"ing>"], "<ending>", "<end")
    assert ("".join(released), stopped) == ("x", True)
    released, rest, stopped = stream([b"1 <ab", b"c"], "<abd", "bc")
    assert ("".join(released), rest, stopped) == ("1 <a", "", True)


def test_whole_lines_as_stop() -> None:
    assert stream([b"User", b":\n", b"\nUser:"], "\n\n")[0] == ["User", ":", ""]


def test_across_the_bytes_of_a_character() -> None:
    data = "ja 🛑 nein".encode()
    for size in (1, 2, 3):
        released, rest, stopped = stream(in_pieces(data, size), "🛑 n")
        assert ("".join(released), rest, stopped) == ("ja ", "", True)


def test_an_empty_stop_string_is_none() -> None:
    assert stream([b"a", b"b"], "") == (["a", "b"], "", False)
