"""An answer that goes on has the tokens it would have had without a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
from toys import load, write_llama

from engine.chat import CHATML, Message
from engine.errors import BadRequest
from engine.events import Done, Tokens
from engine.loop import generate
from engine.native import CancelFlag
from engine.request import Request, Sampling
from engine.session import Session

QUESTION = [Message("user", "hi there")]


def answer(
    session: Session, prompt: tuple[int, ...], length: int, continued: int = 0
) -> tuple[list[int], str]:
    """Ids and text of `length` greedy tokens."""
    request = Request(
        prompt, Sampling(temperature=0), max_tokens=length, ignore_eos=True, continued=continued
    )
    ids, text = [], ""
    for event in generate(session, request, CancelFlag()):
        if isinstance(event, Tokens):
            ids += event.ids
        if isinstance(event, (Tokens, Done)):
            text += event.text
    return ids, text


def test_it_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    with load(write_llama(tmp_path / "toy.gguf", template=CHATML)) as session:
        whole, whole_text = answer(session, session.dialogue.tokenize_chat(QUESTION), 24)
        for at in (1, 9, 17):
            ids, text = answer(session, session.dialogue.tokenize_chat(QUESTION), at)
            told = [*QUESTION, Message("assistant", text)]
            prompt, count = session.dialogue.tokenize_continued(told)
            assert count == at
            rest, rest_text = answer(session, prompt, 24 - at, count)
            assert ids + rest == whole
            assert text + rest_text == whole_text
            # The next turn finds the whole answer in the cache.
            following = [*QUESTION, Message("assistant", whole_text), Message("user", "and?")]
            assert (
                session.timeline.reusable(session.dialogue.tokenize_chat(following))
                >= len(prompt) + len(rest) - 1
            )
        with pytest.raises(BadRequest):
            session.dialogue.tokenize_continued(QUESTION)
