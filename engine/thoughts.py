"""Tells a model's thoughts from its answer, in text that comes piece by piece.

A model that thinks starts with `<think>` and has its answer behind `</think>`. Many chat templates write the
opening tag themselves, so that only the closing one is generated; the engine then puts the tag before the
text, which so always tells by itself what is what. Tags anywhere else are text like any other.

Where a model tells by its tokens what is a thought (`engine.channels`), the engine writes marks of its own,
which may stand anywhere and come again.
"""

from __future__ import annotations

import re

OPEN, CLOSE = "<think>", "</think>"

#: Ours. No model writes them by itself, and no word that one may search for is in them.
MARKS = ("<|~t|>", "<|~/t|>")

_TAGS = (
    MARKS,
    (OPEN, CLOSE),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
)
_MARK = re.compile("(" + "|".join(re.escape(mark) for mark in MARKS) + ")")
_OPENED = re.compile("(?:" + "|".join(re.escape(opening) for opening, _ in _TAGS) + r")\s*\Z")


def is_tag(text: str) -> bool:
    """Whether `text` is one of the tags that thoughts begin or end with."""
    return any(text in pair for pair in _TAGS)


def opens_thoughts(prompt: str) -> str:
    """The opening tag, with white space behind it, that `prompt` ends with: thoughts follow. Else ""."""
    found = _OPENED.search(prompt)
    return found.group() if found else ""


def closing_of(opening: str) -> str:
    """The tag that ends what `opening` has begun."""
    return dict(_TAGS)[opening.strip()]


class Thoughts:
    """Splits one answer. `open`: thoughts are being written; `seen`: there were some."""

    def __init__(self) -> None:
        self.open = self.seen = False
        self._close = ""
        self._held = ""
        self._started = False

    def feed(self, text: str) -> tuple[str, str]:
        """What `text` adds to the thoughts and to the answer. Holds back what may become a tag."""
        text, self._held = self._held + text, ""
        if not self._started:
            return self._start(text)
        return self._go_on(text)

    def close(self) -> tuple[str, str]:
        """The end: what was held back is text after all."""
        held, self._held = self._held, ""
        return (held, "") if self.open else ("", held)

    def _start(self, text: str) -> tuple[str, str]:
        body = text.lstrip()
        for opening, closing in _TAGS:
            if body.startswith(opening):
                self._started = self.open = self.seen = True
                self._close = closing
                return self._go_on(body[len(opening) :])
        if any(opening.startswith(body) for opening, _ in _TAGS):
            self._held = text
            return "", ""
        self._started = True
        return self._go_on(text)

    def _go_on(self, text: str) -> tuple[str, str]:
        parts = {True: "", False: ""}  # of thoughts, of the answer
        while text:
            tag = self._close if self.open else MARKS[0]
            piece, found, text = text.partition(tag)
            if not found:
                keep = next((n for n in range(len(tag) - 1, 0, -1) if piece.endswith(tag[:n])), 0)
                self._held = piece[len(piece) - keep :]
                piece = piece[: len(piece) - keep]
            parts[self.open] += piece
            if found:
                self._turn(parts)
        return parts[True], parts[False]

    def _turn(self, parts: dict[bool, str]) -> None:
        """Thoughts end, or begin: those that come again stand apart from the ones before."""
        self.open = not self.open
        if self.open:
            parts[True] += "\n\n" if self.seen else ""
            self.seen, self._close = True, MARKS[1]


def split(text: str) -> tuple[str, str]:
    """The thoughts and the answer of a whole `text`, without the white space around where it has both."""
    thoughts = Thoughts()
    pieces = (thoughts.feed(text), thoughts.close())
    thought, answer = ("".join(part) for part in zip(*pieces, strict=True))
    return (thought.strip(), answer.strip()) if thoughts.seen else ("", text)


def apart(text: str) -> list[str]:
    """`text` cut at marks of ours, which stand between the pieces."""
    return _MARK.split(text)


def without_marked(text: str) -> str:
    """`text` without thoughts between marks of ours, which no chat template knows."""
    return split(text)[1] if MARKS[0] in text else text
