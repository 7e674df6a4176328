"""Blocks of an answer as lines of text: what was drafted, what of it the target took, what it added."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from textual.content import Content

from app.tokens import shown

if TYPE_CHECKING:
    from engine.events import Block

#: Every kind of token has a sign of its own, because colours alone say nothing without colours.
ACCEPTED, REJECTED, OWN = "✓", "✗", "+"
LEGEND = f"{ACCEPTED} accepted  {REJECTED} rejected  {OWN} the model's own"

_STYLES = {ACCEPTED: "$text-success", REJECTED: "$text-error strike", OWN: "bold"}
_LABEL = 10  # cells: "ngram 9/12"
_PLAIN_LINES = 2  # of blocks without a draft, however many follow each other


def block_lines(blocks: Sequence[Block], width: int, height: int) -> list[Content]:
    """The latest blocks that fit, the newest last. Those without a draft that follow each other share
    lines."""
    lines: list[Content] = []
    most = _PLAIN_LINES if any(block.drafted for block in blocks) else max(1, height)
    for drafted, run in _runs_backwards(blocks):
        earlier = _drafted(run[0], width) if drafted else _plain(run, width, most)
        if lines and len(earlier) + len(lines) > height:
            break
        lines = earlier + lines
    return lines[:height]


def _runs_backwards(blocks: Sequence[Block]) -> Iterator[tuple[bool, list[Block]]]:
    for drafted, group in groupby(reversed(blocks), lambda block: bool(block.drafted)):
        run = list(group)[::-1]
        if drafted:
            yield from ((True, [block]) for block in reversed(run))
        else:
            yield False, run


def _drafted(block: Block, width: int) -> list[Content]:
    words = [
        *_words(ACCEPTED, block.drafted[: block.accepted], width),
        *_words(REJECTED, block.drafted[block.accepted :], width),
        *_words(OWN, block.own, width),
    ]
    rows = list(_filled(words, width - _LABEL - 1))
    return _labelled(f"{block.source} {block.accepted}/{len(block.drafted)}", rows, width)


def _plain(run: list[Block], width: int, most: int) -> list[Content]:
    """Blocks without a draft, in `most` lines."""
    rows = list(
        _filled(_words(OWN, [token for block in run for token in block.own], width), width - _LABEL - 4)
    )
    if len(rows) > most:
        rows = rows[-most:]
        rows[0] = Content.styled(f"{OWN} …", "$foreground-muted") + rows[0]
    return _labelled(f"none ×{len(run)}", rows, width)


def _labelled(label: str, rows: list[Content], width: int) -> list[Content]:
    labels = [label, *[""] * (len(rows) - 1)]
    return [
        (Content.styled(f"{label:<{_LABEL}} ", "$foreground-muted") + row).rstrip().truncate(width)
        for label, row in zip(labels, rows, strict=True)
    ]


def _words(sign: str, tokens: Sequence[str], width: int) -> list[Content]:
    """The tokens with `sign` before the first and a stroke before each other one."""
    most = max(1, min(24, width - _LABEL - 4))
    return [
        Content.styled(f"{'│' if at else f'{sign} '}", "$foreground-muted")
        + Content.styled(shown(token, most), _STYLES[sign])
        + ("" if at + 1 < len(tokens) else " ")
        for at, token in enumerate(tokens)
    ]


def _filled(words: Iterable[Content], width: int) -> Iterator[Content]:
    """`words` side by side, as many as fit on each line."""
    line = Content("")
    for word in words:
        if line and line.cell_length + word.rstrip().cell_length > width:
            yield line
            line = Content("")
        line += word
    yield line
