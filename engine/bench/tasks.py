"""Prompts of our own for the tasks of S2-MoE, section 6.1: a dozen each, in assets/tasks/prompts.jsonl."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from engine.chat import Message
from engine.errors import BadRequest
from engine.paths import EMBEDDED_MODEL

#: Where the texts of benches lie.
FOLDER = EMBEDDED_MODEL.parent / "tasks"

TASKS = {
    "MT": "conversation of several turns",
    "RG": "questions about a text that is given",
    "SU": "summaries",
    "TR": "translation",
    "QA": "questions",
    "MA": "sums in words",
    "HE": "Python functions",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that ends with a question; `task` is one of TASKS."""

    task: str
    messages: tuple[Message, ...]


def tasks_of(text: str) -> list[str]:
    """The tasks named in `text`, with commas between them; each once. Raises BadRequest."""
    names = list(dict.fromkeys(text.upper().split(",")))
    for name in names:
        if name not in TASKS:
            raise BadRequest(f"no task {name!r}", hint="tasks are " + ", ".join(TASKS))
    return names


def prompts_for(tasks: Sequence[str], each: int | None = None) -> list[Prompt]:
    """The first `each` prompts of every one of `tasks`, or all, one of each task in turn."""
    lines = (FOLDER / "prompts.jsonl").read_text(encoding="utf-8").splitlines()
    known = [_prompt(json.loads(line)) for line in lines]
    columns = [[prompt for prompt in known if prompt.task == task][:each] for task in tasks]
    return [prompt for row in zip_longest(*columns) for prompt in row if prompt is not None]


def _prompt(line: dict[str, object]) -> Prompt:
    turns = line["turns"]
    assert isinstance(turns, list)
    roles = ["user" if i % 2 == 0 else "assistant" for i in range(len(turns))]
    return Prompt(str(line["task"]), tuple(Message(*turn) for turn in zip(roles, turns, strict=True)))
