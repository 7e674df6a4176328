"""G3 with penalties, a grammar and log-probabilities: their state rolls back with the draft."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from decoding import Loader, cache_bytes, prompt_of, request

from engine.events import Done, TokenLogprob, Tokens
from engine.loop import generate
from engine.native import CancelFlag
from engine.request import Request
from engine.schema import grammar_of
from engine.session import Session

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 30},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "minItems": 2, "maxItems": 3},
        "rating": {"enum": ["good", 'so "so"', "bad\n"]},
        "pages": {"type": ["integer", "null"]},
        "code": {"type": "string", "pattern": r"^[A-Z]{2}-\d{1,4}$|^none$"},
    },
    "required": ["title", "tags", "rating", "pages"],
    "additionalProperties": False,
}


def run(session: Session, asked: Request) -> tuple[list[int], str, list[TokenLogprob], Done, bytes]:
    ids: list[int] = []
    text, logprobs = "", list[TokenLogprob]()
    for event in generate(session, asked, CancelFlag()):
        if isinstance(event, Tokens):
            ids += event.ids
            logprobs += event.logprobs
            text += event.text
        elif isinstance(event, Done):
            return ids, text + event.text, logprobs, event, cache_bytes(session)
    raise AssertionError("the answer had no end")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["free", "schema"])
def test_penalties_grammar_and_logprobs_are_those_of_plain_decode(
    loader: Loader, passage: str, temperature: float, schema: dict[str, object] | None
) -> None:
    session = loader.get(threads=2)
    prompt = prompt_of(session, passage, 100)
    penalties = {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repeat_penalty": 1.1}
    asked = replace(
        request(prompt, temperature=temperature, tokens=200, **penalties),
        grammar=grammar_of(schema) if schema else "",
        top_logprobs=3,
    )
    plain = run(session, asked)
    drafted = request(prompt, mode="s2-exact", k=3, length=5).speculation
    ids, text, logprobs, done, cache = run(session, replace(asked, speculation=drafted))
    assert done.timings.draft_n > done.timings.draft_n_accepted > 0, "drafts were rolled back, and some not"
    assert (ids, text, logprobs, cache) == (plain[0], plain[1], plain[2], plain[4])
    assert len(logprobs) == len(ids)
    assert all(entry.logprob <= entry.top[0][1] <= 0 for entry in logprobs)
    if schema:
        found = json.loads(text)
        assert done.reason == "eos"
        assert set(found) >= {"title", "tags", "rating", "pages"}
        assert found["rating"] in ("good", 'so "so"', "bad\n")
