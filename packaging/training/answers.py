"""What a model answers to fixed questions, and how often its own draft with fewer experts agrees."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.chat import Message
from engine.events import Done, Timings, Tokens
from engine.loop import generate
from engine.native import CancelFlag
from engine.request import Request, Sampling, Speculation
from engine.session import Session

QUESTIONS = Path(__file__).with_name("questions.txt")
LOOP_WORDS, LOOP_TIMES = 6, 3
RULE = (
    f"an answer loops when a run of {LOOP_WORDS} words comes {LOOP_TIMES} times or more in it; "
    "it is empty when it holds no letter and no digit"
)
DRAFT_LENGTH = 4


@dataclass(frozen=True)
class Answer:
    """The answer to one question, why it ended, and the engine's counts."""

    question: str
    text: str
    reason: str
    timings: Timings

    @property
    def loops(self) -> bool:
        return loops(self.text)

    @property
    def empty(self) -> bool:
        return not re.search(r"\w", self.text)


def loops(text: str) -> bool:
    words = text.split()
    runs = Counter(tuple(words[at : at + LOOP_WORDS]) for at in range(len(words) - LOOP_WORDS + 1))
    return any(count >= LOOP_TIMES for count in runs.values())


def questions(count: int) -> list[str]:
    return QUESTIONS.read_text(encoding="utf-8").splitlines()[:count]


def ask(session: Session, question: str, sampling: Sampling, speculation: Speculation, tokens: int) -> Answer:
    """Asks as the chat does: a conversation of its own, by the model's template."""
    prompt = session.dialogue.tokenize_chat([Message("user", question)])
    request = Request(prompt, sampling=sampling, speculation=speculation, max_tokens=tokens)
    pieces: list[str] = []
    for event in generate(session, request, CancelFlag()):
        if isinstance(event, Tokens):
            pieces.append(event.text)
        elif isinstance(event, Done):
            return Answer(question, "".join([*pieces, event.text]), event.reason, event.timings)
    raise RuntimeError("an answer without an end")


def answers(session: Session, asked: Sequence[str], tokens: int, times: int) -> list[Answer]:
    """Drawn with the chat's defaults, all once, then all again, each with a fixed seed of its own."""
    plain = Speculation(mode="ar")
    return [
        ask(session, text, Sampling(seed=1000 * turn + number), plain, tokens)
        for turn in range(times)
        for number, text in enumerate(asked)
    ]


def acceptance(
    session: Session, asked: Sequence[str], temperature: float, experts: int, tokens: int
) -> float:
    """Drafted tokens accepted / verified in s2-exact, over all answers."""
    # Always as many: where prices decide, next to nothing is drafted of a model that is all in memory.
    speculation = Speculation("s2-exact", experts, DRAFT_LENGTH, expansion="fixed")
    drafted = accepted = 0
    for number, text in enumerate(asked):
        sampling = Sampling(temperature=temperature, seed=number)
        timings = ask(session, text, sampling, speculation, tokens).timings
        drafted += timings.draft_n
        accepted += timings.draft_n_accepted
    return accepted / drafted if drafted else float("nan")
