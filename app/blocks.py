"""The code blocks of an answer, to be copied one by one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from markdown_it import MarkdownIt


@dataclass(frozen=True, slots=True)
class Block:
    """`language` is "" where the fence names none; `code` ends with a newline."""

    language: str
    code: str


def blocks(text: str) -> list[Block]:
    """The fenced and indented blocks of `text` in order; one that is not closed reaches to the end."""
    tokens = _parser().parse(text)
    return [
        Block(token.info.split()[0] if token.info.split() else "", token.content)
        for token in tokens
        if token.type in ("fence", "code_block") and token.content.strip()
    ]


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark")
