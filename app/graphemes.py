"""What a person takes for one character of a line, however many code points it has."""

from __future__ import annotations

from rich.cells import split_graphemes

_WINDOW = 64  # code points to both sides that are looked at; a pasted line may have millions


def bounds(line: str, column: int) -> tuple[int, int]:
    """Start and end of the character of `line` that has code point `column`, both `column` at its end."""
    if column >= len(line):
        return len(line), len(line)
    first = max(0, column - _WINDOW)
    near = line[first : column + _WINDOW]
    if near.isascii():
        return column, column + 1
    start = end = first
    for length in _lengths(near):
        start, end = end, end + length
        if end > column:
            break
    return start, end


def _lengths(text: str) -> list[int]:
    """Code points of each character; flags, which are two letters to a terminal, are one."""
    lengths: list[int] = []
    half_a_flag = False
    for start, end, _ in split_graphemes(text)[0]:
        letter = "\U0001f1e6" <= text[start] <= "\U0001f1ff"
        if letter and half_a_flag:
            lengths[-1] += end - start
        else:
            lengths.append(end - start)
        half_a_flag = letter and not half_a_flag
    return lengths
