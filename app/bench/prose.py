"""An answer to stream: prose, long code blocks and tables, the same text every time."""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEXT = (
    "the lock lifts a boat between two levels of water while gates and sluices hold back what would run "
    "down and nobody pumps because the river itself does all of the work that a keeper only has to begin"
)
_WORDS = _TEXT.split()
_CODE_LINES = 120
_TABLE_ROWS = 40


def tokens(count: int, seed: int = 1) -> list[str]:
    """`count` pieces of ASCII text, about a word each, as a model would stream them."""
    return list(islice(_pieces(random.Random(seed)), count))


def _pieces(chance: random.Random) -> Iterator[str]:
    section = 0
    while True:
        section += 1
        yield from _words(f"## Part {section} of the *answer*\n\n")
        for _ in range(3):
            yield from _paragraph(chance)
        yield from _list(chance)
        yield from _code(chance, section)
        yield from _table(chance)


def _words(text: str) -> Iterator[str]:
    """`text` cut behind every space, as tokens mostly are."""
    start = 0
    while (end := text.find(" ", start) + 1) > 0:
        yield text[start:end]
        start = end
    if text[start:]:
        yield text[start:]


def _sentence(chance: random.Random, words: int = 14) -> str:
    said = chance.choices(_WORDS, k=words)
    said[chance.randrange(words)] = f"**{said[0]}**"
    return " ".join(said).capitalize() + ". "


def _paragraph(chance: random.Random) -> Iterator[str]:
    for _ in range(5):
        yield from _words(_sentence(chance))
    yield "\n\n"


def _list(chance: random.Random) -> Iterator[str]:
    for _ in range(6):
        yield from _words(f"- {_sentence(chance, 9)}\n")
    yield "\n"


def _code(chance: random.Random, section: int) -> Iterator[str]:
    yield "```python\n"
    for line in range(_CODE_LINES):
        name = chance.choice(_WORDS)
        yield from _words(
            f"    value_{section}_{line} = compute({name!r}, {chance.random():.4f}) + [{line}]\n"
        )
    yield "```\n\n"


def _table(chance: random.Random) -> Iterator[str]:
    yield from _words("| name | metres | of which `used` |\n|---|---:|---|\n")
    for _ in range(_TABLE_ROWS):
        cells = (chance.choice(_WORDS), chance.randrange(10_000), chance.choice(_WORDS))
        yield from _words("| {} | {} | **{}** |\n".format(*cells))
    yield "\n"
