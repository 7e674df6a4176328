"""Tools: what requests may say of them, and calls told apart from text wherever it is cut."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.call import parse_chat
from engine.errors import BadRequest
from engine.events import Done, Timings, Tokens
from engine.job import Started
from engine.replies import Reply

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
HI = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Ulm"}}\n</tool_call>'


def answer(pieces: list[str], reason: Any = "eos", **fields: Any) -> tuple[str, list[tuple[str, str]], str]:
    """Text, calls and reason a streaming client puts together."""
    reply = Reply(parse_chat({"messages": HI, "tools": [WEATHER], "stream": True, **fields}), "id", "model")
    reply.take([Started(7, "ar")])
    raw = b""
    for piece in pieces:
        reply.take([Tokens(piece, (1,), Timings())])
        raw += reply.events()
    reply.take([Done(reason, "", Timings())])
    raw += reply.events()
    events = [json.loads(line[6:]) for line in raw.decode().split("\n\n") if line[6:7] == "{"]
    choices = [event["choices"][0] for event in events]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == list(range(len(calls)))
    named = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    return text, named, choices[-1]["finish_reason"]


TOWN = ("weather", '{"town": "Ulm"}')
CASES = [
    (CALL, "", [TOWN], "tool_calls"),
    ("Let me look.\n" + CALL, "Let me look.", [TOWN], "tool_calls"),
    (CALL + "\n" + CALL, "", [TOWN, TOWN], "tool_calls"),
    (CALL.removesuffix("</tool_call>"), "", [TOWN], "tool_calls"),
    ("no <tool here", "no <tool here", [], "stop"),
    ("<tool_call>no JSON</tool_call>", "<tool_call>no JSON</tool_call>", [], "stop"),
    ('<tool_call>{"name": "rm"}</tool_call>', '<tool_call>{"name": "rm"}</tool_call>', [], "stop"),
]


@pytest.mark.parametrize(("text", "said", "calls", "reason"), CASES)
def test_the_cut_does_not_matter(text: str, said: str, calls: list[tuple[str, str]], reason: str) -> None:
    for cut in range(0, len(text) + 1, 3):
        assert answer([text[:cut], text[cut : cut + 2], text[cut + 2 :]]) == (said, calls, reason)


def test_one_call_where_no_more_are_wanted_and_length_is_said() -> None:
    assert answer([CALL, CALL], parallel_tool_calls=False)[1] == [TOWN]
    assert answer([CALL], "max_tokens")[2] == "length"


def test_a_whole_answer_has_the_calls_in_its_message() -> None:
    reply = Reply(parse_chat({"messages": HI, "tools": [WEATHER]}), "id", "model")
    reply.take([Started(7, "ar"), Tokens(CALL, (1,), Timings()), Done("eos", "", Timings())])
    (choice,) = reply.whole()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    (call,) = choice["message"]["tool_calls"]
    assert set(call) == {"id", "type", "function"}
    assert call["function"] == {"name": TOWN[0], "arguments": TOWN[1]}


def test_a_conversation_with_calls() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Ulm"}'}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "1", "content": "rain"}
    messages = parse_chat({"messages": [*HI, asked, told]}).messages
    assert messages[1].content == ""
    assert messages[1].more["tool_calls"][0]["function"]["arguments"] == {"town": "Ulm"}
    assert messages[2].more == {"tool_call_id": "1"}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER, WEATHER]}, "same name"),
        ({"tools": [WEATHER], "tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": True}}]}, "strict"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        (
            {"tools": [WEATHER], "response_format": {"type": "json_object"}, "tool_choice": "required"},
            "format",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}, "tool_calls[0].function"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat({"messages": HI, **fields})
    assert named in caught.value.message
