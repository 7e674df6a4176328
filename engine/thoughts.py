"""Tells a model's thoughts from its answer, in text that comes piece by piece.

A model that thinks starts with `<think>` and has its answer behind `</think>`. Many chat templates write the
opening tag themselves, so that only the closing one is generated; the engine then puts the tag before the
text, which so always tells by itself what is what. Tags anywhere else are text like any other.
"""

from __future__ import annotations

import re

OPEN, CLOSE = "<think>", "</think>"

_TAGS = (
    (OPEN, CLOSE),
    ("<thinking>", "</thinking>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
)
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
        text = self._held + text
        self._held = ""
        if not self._started:
            return self._start(text)
        return self._go_on(text) if self.open else ("", text)

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
        return "", text

    def _go_on(self, text: str) -> tuple[str, str]:
        thought, tag, answer = text.partition(self._close)
        if tag:
            self.open = False
            return thought, answer
        keep = next((n for n in range(len(self._close) - 1, 0, -1) if text.endswith(self._close[:n])), 0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""


def split(text: str) -> tuple[str, str]:
    """The thoughts and the answer of a whole `text`, without the white space around where it has both."""
    thoughts = Thoughts()
    pieces = (thoughts.feed(text), thoughts.close())
    thought, answer = ("".join(part) for part in zip(*pieces, strict=True))
    return (thought.strip(), answer.strip()) if thoughts.seen else ("", text)
