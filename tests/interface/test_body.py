"""A growing answer is drawn piece by piece and ends as if it had been drawn at once."""

from __future__ import annotations

import random
import re

import pytest
from rich.segment import Segment
from rich.style import Style

from app.body import Body
from app.markdown import Line, MarkdownRenderer, Palette

_DOCUMENT = """\
# Title with [brackets]

A paragraph with *emphasis*, `code` and **weight**, long enough to be wrapped on a narrow screen [/b].
A second line of it.

- one
- two
    - nested

1. first

2. second

```python
def f(x):

    return x[i] = [/p]
```
Text right after the fence:
~~~
no language
```
still code
~~~

> a quote

| a | b |
|---|---|
| 1 | 22 |

<script>not html</script> and [a link](http://example.com/x) ![image](y.png)

[ref]: http://example.com "kept"

猫 こんにちは 👩‍👩‍👧 🇫🇷 é end
"""


def renderer() -> MarkdownRenderer:
    style = Style.parse("white on black")
    return MarkdownRenderer(
        Palette(style, style, style, style, style, style, style, style, style, style, "github-dark")
    )


def text_of(lines: list[Line]) -> list[str]:
    return ["".join(segment.text for segment in line).rstrip() for line in lines]


def body(text: str = "") -> Body:
    return Body(text, Segment(""))


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.mark.parametrize("width", [1, 7, 40, 120])
@pytest.mark.parametrize("seed", range(5))
def test_chunks_do_not_matter_in_the_end(width: int, seed: int) -> None:
    chance = random.Random(seed)
    drawn, at = body(), 0
    painter = renderer()
    while at < len(_DOCUMENT):
        size = chance.randint(1, 60)
        drawn.append(_DOCUMENT[at : at + size])
        at += size
        drawn.lines(painter, width)
    drawn.close()
    assert text_of(drawn.lines(painter, width)) == text_of(body(_DOCUMENT).lines(painter, width))


@pytest.mark.parametrize("step", [1, 5, 33])
def test_no_word_is_missing_while_it_grows(step: int) -> None:
    drawn, painter = body(), renderer()
    for at in range(0, len(_DOCUMENT), step):
        drawn.append(_DOCUMENT[at : at + step])
        so_far = words(_DOCUMENT[: at + step])[:-1]
        seen = set(words(" ".join(text_of(drawn.lines(painter, 200)))))
        # The name of a code block's language is not shown, and a mark in the making may hide a word once.
        missing = [word for word in so_far if word not in seen and word != "python"]
        assert len(missing) <= 1, missing


def test_open_code_keeps_its_indent_and_blank_lines() -> None:
    drawn, painter = body(), renderer()
    for piece in ("Look:\n```py\ndef f():\n", "    return", " 1\n\n", "    x"):
        drawn.append(piece)
        drawn.lines(painter, 40)
    assert text_of(drawn.lines(painter, 40)) == ["Look:", "", " def f():", "     return 1", "", "     x"]


def test_the_mark_that_ends_code_is_not_shown_as_code() -> None:
    drawn, painter = body(), renderer()
    drawn.append("```\ncode\n``")
    assert text_of(drawn.lines(painter, 40)) == [" code"]
    drawn.append("`")
    assert text_of(drawn.lines(painter, 40)) == [" code"]


def test_a_finished_block_is_not_rendered_again() -> None:
    drawn, painter = body(), renderer()
    drawn.append("first paragraph\n\nsecond")
    before = drawn.lines(painter, 40)
    drawn.append(" goes on")
    after = drawn.lines(painter, 40)
    assert after[0] is before[0]
    assert text_of(after) == ["first paragraph", "", "second goes on"]


def test_another_width_wraps_everything_anew() -> None:
    drawn, painter = body(), renderer()
    drawn.append("aaa bbb ccc\n\nddd eee fff")
    assert text_of(drawn.lines(painter, 40)) == ["aaa bbb ccc", "", "ddd eee fff"]
    assert text_of(drawn.lines(painter, 7)) == ["aaa bbb", "ccc", "", "ddd eee", "fff"]


@pytest.mark.parametrize(
    "text", ["[/]", "[bold", "[b +", "x[i]=[/p]", "\\[", "[red]no[/red]", "<b>no</b>", "&lt"]
)
def test_brackets_are_shown_as_they_are(text: str) -> None:
    assert text_of(body(f"a {text} b").lines(renderer(), 40)) == [f"a {text} b".replace("\\[", "[")]


def test_terminal_control_is_not_drawn() -> None:
    drawn = body()
    drawn.append("a\x1b[3")
    drawn.append("1mb\x1b]0;t\x07c\u202e")
    drawn.close()
    assert text_of(drawn.lines(renderer(), 40)) == ["abc"]


def test_a_single_newline_stays() -> None:
    assert text_of(body("Roses are red\nViolets are blue").lines(renderer(), 40)) == [
        "Roses are red",
        "Violets are blue",
    ]


def test_a_very_long_paragraph_is_still_shown() -> None:
    drawn, painter = body(), renderer()
    drawn.append("word " * 3000)
    assert sum(line.count("word") for line in text_of(drawn.lines(painter, 80))) == 3000
