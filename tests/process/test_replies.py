"""Answers of the HTTP interface: OpenAI's shapes, whole text, numbers only when asked for."""

from __future__ import annotations

import json
from typing import Any

from engine.call import parse_chat, parse_completion
from engine.errors import ContextFull
from engine.events import Block, Done, Look, Prefill, Timings, Tokens
from engine.job import Started
from engine.replies import Reply

HI = [{"role": "user", "content": "hi"}]
TIMINGS = Timings(prompt_n=5, cache_n=2, predicted_n=3)


def chat(**fields: Any) -> Reply:
    reply = Reply(parse_chat({"messages": HI, "stream": True, **fields}), "id", "model")
    reply.take([Started(7, "s2-exact")])
    return reply


def read(events: bytes) -> list[Any]:
    lines = [line for line in events.decode("ascii").split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


def test_blocks_that_came_together_make_one_chunk() -> None:
    reply = chat(return_tokens=True, timings_per_token=True)
    reply.take([Tokens("a👨‍👩‍👧", (1, 2), TIMINGS), Tokens("", (3,), TIMINGS), Tokens("é", (4,), TIMINGS)])
    (chunk,) = read(reply.events())
    assert chunk["choices"] == [{"index": 0, "delta": {"content": "a👨‍👩‍👧é"}, "finish_reason": None}]
    assert chunk["tokens"] == [1, 2, 3, 4]
    assert chunk["timings"]["prompt_n"] == 5
    assert reply.events() == b""


def test_the_end_brings_held_text_then_the_reason_then_done() -> None:
    reply = chat()
    reply.take([Tokens("a", (1,), TIMINGS), Done("context", "b", TIMINGS)])
    text, end, done = read(reply.events())
    assert text["choices"][0]["delta"] == {"content": "ab"}
    assert end["choices"] == [{"index": 0, "delta": {}, "finish_reason": "length"}]
    assert end["s2"] == {"mode": "s2-exact", "exact": True, "finish": "context"}
    assert end["timings"]["cache_n"] == 2
    assert done == "[DONE]"
    assert "tokens" not in text
    assert "timings" not in text
    assert "usage" not in text


def test_looks_travel_with_the_text_that_came_meanwhile() -> None:
    def look(*words: str) -> Look:
        return Look(tuple(Block("self", (word,), 1, (), 2.0) for word in words))

    reply = chat()
    reply.take([Tokens("a", (1,), TIMINGS, look=look("a")), Tokens("b", (2,), TIMINGS, look=look("b", "c"))])
    (chunk,) = read(reply.events())
    assert chunk["choices"][0]["delta"] == {"content": "ab"}
    assert [block["drafted"] for block in chunk["s2"]["look"]["blocks"]] == [["a"], ["b"], ["c"]]
    reply.take([Tokens("d", (3,), TIMINGS), Done("eos", "", TIMINGS, look("e"))])
    text, end, _ = read(reply.events())
    assert [block["drafted"] for block in text["s2"]["look"]["blocks"]] == [["e"]]
    assert end["s2"] == {"mode": "s2-exact", "exact": True, "finish": "eos"}


def test_usage_comes_only_when_asked_for() -> None:
    reply = chat(stream_options={"include_usage": True})
    reply.take([Tokens("a", (1,), TIMINGS), Done("eos", "", TIMINGS)])
    text, end, usage, done = read(reply.events())
    assert text["usage"] is None
    assert end["usage"] is None
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert done == "[DONE]"


def test_progress_comes_only_when_asked_for_and_the_latest_wins() -> None:
    assert chat().events() == b""
    reply = chat(return_progress=True)
    reply.take([Prefill(2, 9, 1), Prefill(5, 9, 1)])
    (chunk,) = read(reply.events())
    assert chunk["choices"][0]["delta"] == {}
    assert {**chunk["prompt_progress"], "time_ms": 0} == {
        "total": 9,
        "cache": 1,
        "processed": 5,
        "time_ms": 0,
    }


def test_an_error_is_the_last_event() -> None:
    reply = chat()
    reply.take([Tokens("a", (1,), TIMINGS), ContextFull("full", hint="shorten")])
    text, error = read(reply.events())
    assert text["choices"][0]["delta"] == {"content": "a"}
    assert error["error"] == {
        "code": "context_full",
        "message": "full",
        "hint": "shorten",
        "type": "invalid_request_error",
    }
    assert reply.ended


def test_whole_answers() -> None:
    reply = Reply(parse_chat({"messages": HI, "return_tokens": True}), "id", "model")
    reply.take([Started(7, "ar"), Tokens("a", (1, 2), TIMINGS), Done("stop_string", "b", TIMINGS)])
    answer = reply.whole()
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ab"}}
    ]
    assert answer["usage"]["total_tokens"] == 10
    assert answer["tokens"] == [1, 2]
    assert answer["s2"] == {"mode": "ar", "exact": True, "finish": "stop_string"}


def test_completions_have_their_own_shape() -> None:
    reply = Reply(parse_completion({"prompt": "x", "stream": True}), "id", "model")
    assert reply.first_events() == b""
    reply.take([Started(1, "ar"), Tokens("a", (1,), TIMINGS)])
    (chunk,) = read(reply.events())
    assert chunk["object"] == "text_completion"
    assert chunk["choices"] == [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}]
