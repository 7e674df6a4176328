"""Questions with answers that can be checked: ours in assets/tasks/items.jsonl, or others in its format."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from engine.bench.tasks import FOLDER
from engine.bench.tasks_code import code_in, holds
from engine.errors import BadRequest
from engine.thoughts import Thoughts

OWN = FOLDER / "items.jsonl"
_TOKENS, _TOKENS_OF_CODE = 32, 128  # of an answer, at most, where the item does not say
_FIELDS = {"question", "kind", "accept", "check", "before", "tokens"}


@dataclass(frozen=True, slots=True)
class Item:
    """`accept` is found in what is right; None where `check` is Python that raises if the answer's code, with
    `before` in front of it, is wrong. An answer has `tokens` at most."""

    question: str
    kind: str
    accept: re.Pattern[str] | None
    check: str
    before: str
    tokens: int

    def is_right(self, answer: str) -> bool:
        """Whether `answer` is accepted, its thoughts left out."""
        thoughts = Thoughts()
        said = thoughts.feed(answer)[1] + thoughts.close()[1]
        if self.accept is not None:
            return self.accept.search(said) is not None
        return holds(f"{self.before}\n{code_in(said)}\n{self.check}\n")


def read_items(path: Path) -> list[Item]:
    """Those of the file, one JSON object per line. Raises BadRequest, naming the line that is wrong."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} cannot be read: {error}") from None
    items = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                items.append(_item(json.loads(line)))
            except (ValueError, re.error) as error:
                hint = "the format stands in `s2chat bench quality --help`"
                raise BadRequest(f"{path}, line {number}: {error}", hint=hint) from None
    if not items:
        raise BadRequest(f"{path} has no questions")
    return items


def _item(line: object) -> Item:
    """Raises ValueError, or re.error."""
    if not isinstance(line, dict):
        raise ValueError("a line is an object")
    if unknown := sorted(line.keys() - _FIELDS):
        raise ValueError(f"{unknown[0]!r} is no field")
    if ("accept" in line) == ("check" in line):
        raise ValueError("an item has either accept or check")
    for name in _FIELDS & line.keys() - {"tokens"} | {"question", "kind"}:
        if not isinstance(line.get(name), str):
            raise ValueError(f"{name} is no text")
    tokens = line.get("tokens", _TOKENS_OF_CODE if "check" in line else _TOKENS)
    if not isinstance(tokens, int) or tokens < 1:
        raise ValueError("tokens is no number from 1 up")
    accept = re.compile(line["accept"], re.IGNORECASE) if "accept" in line else None
    return Item(line["question"], line["kind"], accept, line.get("check", ""), line.get("before", ""), tokens)
