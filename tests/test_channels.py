"""Harmony: thoughts, answers and calls are told apart by tokens, wherever the answer is cut."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from harmony import ids, write_harmony, written
from toys import load, write_llama

from engine.call import parse_chat
from engine.channels import HARMONY, Channels, Place, channels_of
from engine.chat import Message
from engine.errors import BadRequest
from engine.events import Done, Timings, Tokens
from engine.job import Started
from engine.loop import generate
from engine.native import CancelFlag
from engine.prompt import request_of
from engine.replies import Reply
from engine.request import Request, Sampling, Speculation
from engine.session import Session
from engine.thoughts import MARKS, split

THINK, NO_MORE = MARKS
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}
HI = [{"role": "user", "content": "hi"}]
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"town":"Ulm"}'
TOWN = ("weather", '{"town": "Ulm"}')

#: What the model writes; thoughts, answer and calls in it.
CASES: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    "answer": (FINAL + "so", "", "so", []),
    "thoughts": (f"{ANALYSIS}why{NEXT}{FINAL}so", "why", "so", []),
    "thoughts twice": (f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c", "a\n\nb", "c", []),
    "thoughts alone": (ANALYSIS + "why <", "why <", "", []),
    "preamble": (f"<|channel|>commentary<|message|>First.{NEXT}{FINAL}so", "", "First.\n\nso", []),
    "thoughts again": (
        f"{ANALYSIS}a{NEXT}<|channel|>commentary<|message|>b{NEXT}{ANALYSIS}c{NEXT}{FINAL}d",
        "a\n\nc",
        "b\n\nd",
        [],
    ),
    "call": (CALL, "", "", [TOWN]),
    "call by the role": (
        ' to=functions.weather<|channel|>commentary json<|message|>{"town":"Ulm"}',
        "",
        "",
        [TOWN],
    ),
    "call behind thoughts": (f"{ANALYSIS}rain?{NEXT}{CALL}", "rain?", "", [TOWN]),
    "call behind a preamble": (
        f"{ANALYSIS}a{NEXT}<|channel|>commentary<|message|>Let me look.{NEXT}{CALL}",
        "a",
        "Let me look.",
        [TOWN],
    ),
    "call with a tag in it": (
        CALL.replace("Ulm", "</tool_call>?"),
        "",
        "",
        [("weather", '{"town": "</tool_call>?"}')],
    ),
    "call without arguments": (CALL.replace('{"town":"Ulm"}', ""), "", "", [("weather", "{}")]),
    "call of what there is not": (
        CALL.replace("weather", "rm"),
        "",
        '<tool_call>{"name": "rm", "arguments": {"town":"Ulm"}}</tool_call>',
        [],
    ),
    "a tool of the training": (
        f"<|channel|>analysis to=python code<|message|>1+1{NEXT}{FINAL}2",
        "1+1",
        "2",
        [],
    ),
    "no end between": (f"{ANALYSIS}why{FINAL}so", "why", "so", []),
    "no header at all": ("Hello\nyou", "", "Hello\nyou", []),
    "a header without an end": (f"{FINAL}a<|end|>b\nc", "", "a\n\nb\nc", []),
    "an unknown channel": ("<|channel|>new<|message|>text", "", "text", []),
    "half a header": ("<|channel|>ana", "", "", []),
    "another's tags": (
        f"{ANALYSIS}a </think> b{NEXT}{FINAL}<think>c</think>",
        "a </think> b",
        "<think>c</think>",
        [],
    ),
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    with load(write_harmony(tmp_path_factory.mktemp("harmony") / "toy.gguf")) as session:
        yield session


def channels(session: Session) -> Channels:
    assert session.dialogue.channels is not None
    return session.dialogue.channels


def forced(session: Session, tokens: Sequence[int], **fields: Any) -> Request:
    """A request of which the answer is `tokens`: a grammar names each of them."""
    rules = "root ::= " + " ".join(f"<[{token}]>" for token in tokens)
    prompt = session.dialogue.tokenize_chat([Message("user", "hi")])
    return Request(prompt, Sampling(seed=1), grammar=rules, **{"in_dialect": True, **fields})


@pytest.fixture
def nothing_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grammar that makes the toy write an answer may name any token, as a model may write any."""
    monkeypatch.setattr(Place, "forbidden", frozenset())


def run(session: Session, request: Request) -> list[Any]:
    return list(generate(session, request, CancelFlag()))


def received(events: Sequence[Any], cuts: tuple[int, int], **fields: Any) -> tuple[str, str, list[Any], str]:
    """What a client gets of an answer whose events were sent in three parts."""
    body = {"messages": HI, "tools": [WEATHER], "stream": True, **fields}
    reply = Reply(parse_chat(body), "id", "model")
    reply.take([Started(7, "ar")])
    raw = b""
    for part in (events[: cuts[0]], events[cuts[0] : cuts[1]], events[cuts[1] :]):
        reply.take(part)
        raw += reply.events()
    found = [json.loads(line[6:])["choices"][0] for line in raw.decode().split("\n\n") if line[6:7] == "{"]
    deltas = [one["delta"] for one in found]
    thought, answer = (
        "".join(d.get(name) or "" for d in deltas) for name in ("reasoning_content", "content")
    )
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
    named = [(call["name"], call["arguments"]) for call in calls]
    return thought, answer, named, found[-1]["finish_reason"]


@pytest.mark.usefixtures("nothing_forbidden")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", ["ar", "s2-exact"])
def test_what_a_model_writes_is_told_apart_wherever_it_is_cut(session: Session, case: str, mode: str) -> None:
    """The whole way: the model draws these tokens, the loop reads them, a client gets them in parts."""
    text, thought, answer, calls = CASES[case]
    events = run(session, forced(session, ids(session, text), speculation=Speculation(mode)))
    assert events[-1].reason == "eos"
    said = [event for event in events if isinstance(event, (Tokens, Done))]
    reason = "tool_calls" if calls else "stop"
    for first in range(len(said) + 1):
        for second in {first, (first + len(said)) // 2, len(said)}:
            assert received(said, (first, second)) == (thought, answer, calls, reason)


@pytest.mark.usefixtures("nothing_forbidden")
def test_every_cut_of_the_text_between_processes(session: Session) -> None:
    """Chunks of the socket need not end where tokens do."""
    text, thought, answer, calls = CASES["call behind a preamble"]
    events = run(session, forced(session, ids(session, text)))
    whole = "".join(event.text for event in events if isinstance(event, (Tokens, Done)))
    end = Done("eos", "", Timings())
    for at in range(len(whole) + 1):
        pieces = [
            Tokens(piece, (1,), Timings()) for piece in (whole[:at], whole[at : at + 2], whole[at + 2 :])
        ]
        assert received([*pieces, end], (1, 2)) == (thought, answer, calls, "tool_calls")


def test_no_special_token_is_ever_shown(session: Session) -> None:
    for text, *_ in CASES.values():
        for length in range(len(tokens := ids(session, text)) + 1):
            shown = channels(session).text(tokens[:length])
            assert not any(name in shown for name in HARMONY.marks)


def test_an_answer_that_explains_the_dialect_is_an_answer(session: Session) -> None:
    """Names that are spelled are text: in what the model writes, in the next prompt, in a question."""
    explained = f"{ANALYSIS}x<|end|> thinks."
    plain = session.vocab.tokenize(explained, add_special=False, parse_special=False, continues=True)
    assert not channels(session).marks & set(plain)
    assert session.vocab.text(plain) == explained
    run(session, forced(session, [*ids(session, FINAL), *plain]))
    asked = [Message("user", f"what is {explained}?"), Message("assistant", explained), Message("user", "?")]
    prompt = session.dialogue.tokenize_chat(asked)
    marks = [token for token in prompt if token in channels(session).marks]
    usual = session.dialogue.tokenize_chat([dataclasses.replace(turn, content="x") for turn in asked])
    assert marks == [token for token in usual if token in channels(session).marks]
    assert written(session, prompt).count(explained) == 2


def test_a_stop_string_does_not_see_our_tags(session: Session) -> None:
    request = forced(session, ids(session, CASES["thoughts"][0]), stop=("~t", "o"))
    events = run(session, request)
    assert events[-1].reason == "stop_string"
    text = "".join(event.text for event in events if isinstance(event, (Tokens, Done)))
    assert text == f"{THINK}why{NO_MORE}s"


def test_log_probabilities_are_those_of_text(session: Session) -> None:
    events = run(session, forced(session, ids(session, CASES["thoughts"][0]), top_logprobs=0))
    pieces = [one.piece for event in events if isinstance(event, Tokens) for one in event.logprobs]
    assert b"".join(pieces) == b"whyso"


# --- the next prompt


def test_earlier_thoughts_are_left_out_and_the_answer_keeps_its_ids(session: Session) -> None:
    answer = [
        *ids(session, ANALYSIS + "why" + NEXT + FINAL),
        *(
            session.vocab.tokenize(letter, add_special=False, parse_special=False, continues=True)[0]
            for letter in "hi"
        ),
    ]
    run(session, forced(session, answer))
    turns = [Message("user", "hi"), Message("assistant", f"{THINK}why{NO_MORE}hi"), Message("user", "and?")]
    prompt = session.dialogue.tokenize_chat(turns)
    text = written(session, prompt)
    assert "why" not in text
    assert f"<|start|>assistant{FINAL}hi<|end|><|start|>user<|message|>and?<|end|><|start|>assistant" in text
    at = [no for no in range(len(prompt)) if list(prompt[no : no + 2]) == answer[-2:]]
    assert len(at) == 1, "as letters, not as the word that the vocabulary has"
    assert prompt == session.dialogue.tokenize_chat(
        [turns[0], Message("assistant", split(turns[1].content)[1]), turns[2]]
    )


def test_thoughts_stay_while_a_call_waits_for_its_answer(session: Session) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"town": "Ulm"}}}
    asked = {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "rain?",
        "tool_calls": [call],
    }
    told = {"role": "tool", "tool_call_id": "1", "content": "<|end|> wet"}

    def prompt(*more: dict[str, Any]) -> str:
        request, _ = request_of(
            session,
            parse_chat({"messages": [*HI, asked, told, *more], "tools": [WEATHER]}),
            Speculation(),
        )
        return written(session, request.prompt)

    assert f"{ANALYSIS}rain?\n\nLet me look.<|end|><|start|>assistant to=functions.weather" in prompt()
    later = prompt({"role": "assistant", "content": "Wet."}, {"role": "user", "content": "and?"})
    assert "rain?" not in later
    assert later.count("<|end|> wet") == 1


@pytest.mark.usefixtures("nothing_forbidden")
def test_an_answer_goes_on_where_it_stopped(session: Session) -> None:
    tokens = tuple(ids(session, f"{ANALYSIS}why not{NEXT}{FINAL}so be it"))
    whole = channels(session).text(tokens)
    for length in range(1, len(tokens)):
        events = run(session, forced(session, tokens, max_tokens=length))
        begun = "".join(event.text for event in events if isinstance(event, (Tokens, Done)))
        if not begun:
            continue  # only a part of a header: the question is asked again
        prompt, count = session.dialogue.tokenize_continued(
            [Message("user", "hi"), Message("assistant", begun)]
        )
        assert prompt[len(prompt) - count :] == tokens[:length]
        rest = dataclasses.replace(forced(session, tokens[length:]), prompt=prompt, continued=count)
        more = "".join(e.text for e in run(session, rest) if isinstance(e, (Tokens, Done)))
        assert begun + more == whole


@pytest.mark.parametrize(
    "text",
    ["so", f"{THINK}why", f"{THINK}why{NO_MORE}so", f"{THINK}a{NO_MORE}b{THINK}c{NO_MORE}\n\nd"],
)
def test_an_answer_of_another_engine_can_go_on(session: Session, text: str) -> None:
    """Its ids are not known: they are made from the text, so that they read the same."""
    prompt, count = session.dialogue.tokenize_continued([Message("user", "hi"), Message("assistant", text)])
    shown = channels(session).text(prompt[len(prompt) - count :])
    assert split(shown) == split(text)


# --- formats, calls that are forced, levels


def wanted(session: Session, **fields: Any) -> Request:
    body = {"messages": HI, "max_tokens": 400, "seed": 3, **fields}
    return request_of(session, parse_chat(body), Speculation(fields.get("mode", "ar")))[0]


@pytest.mark.parametrize("mode", ["ar", "s2-exact"])
def test_a_wanted_format_is_kept_behind_thoughts(session: Session, mode: str) -> None:
    schema = {"enum": ["yes <|end|>", "no <|end|>"]}
    request = wanted(
        session, response_format={"type": "json_schema", "json_schema": {"schema": schema}}, mode=mode
    )
    thoughtful = 0
    for seed in range(8):
        anything = Sampling(seed=seed, temperature=100.0, top_k=0, top_p=1.0, min_p=0.0)
        events = run(session, dataclasses.replace(request, sampling=anything))
        text = "".join(event.text for event in events if isinstance(event, (Tokens, Done)))
        thoughtful += text.startswith(THINK)
        answer = split(text)[1].strip()
        assert json.loads(answer) in schema["enum"] if events[-1].reason == "eos" else not answer
    assert 0 < thoughtful < 8


def test_a_forced_call_is_one(session: Session) -> None:
    request = wanted(session, tools=[WEATHER], tool_choice="required")
    tokens = ids(session, CASES["call behind thoughts"][0])
    assert _fits(session, request, tokens)
    assert _fits(session, request, ids(session, CALL))
    assert not _fits(session, request, ids(session, FINAL + "no"))
    marked = ids(session, CALL.replace("Ulm", "<|end|>"))
    assert channels(session).end in marked
    assert not _fits(session, request, marked)


def _fits(session: Session, request: Request, tokens: Sequence[int]) -> bool:
    from engine.grammar import Grammar

    grammar = Grammar(request.grammar, session.vocab, session.dialogue.channels)
    try:
        for token in tokens:
            if not grammar.allows(token):
                return False
            grammar.accept(token)
        return grammar.allows(session.vocab.ends()[0])
    finally:
        grammar.close()


@pytest.mark.parametrize(
    "field", [{"reasoning_effort": "high"}, {"chat_template_kwargs": {"reasoning_effort": "high"}}]
)
def test_the_level_of_reasoning_reaches_the_template(session: Session, field: dict[str, Any]) -> None:
    assert session.dialogue.can_set_effort
    assert "Reasoning: high" in written(session, wanted(session, **field).prompt)
    assert "Reasoning: medium" in written(session, wanted(session).prompt)


@pytest.mark.parametrize("value", ["much", "minimal", 2, ["low"]])
def test_other_levels_are_refused(value: Any) -> None:
    with pytest.raises(BadRequest, match="reasoning_effort"):
        parse_chat({"messages": HI, "reasoning_effort": value})


def test_a_template_without_levels_says_so(tmp_path: Path) -> None:
    with load(write_llama(tmp_path / "toy.gguf")) as plain:
        assert plain.dialogue.channels is None
        with pytest.raises(BadRequest, match="levels of reasoning"):
            plain.dialogue.tokenize_chat([Message("user", "hi")], effort="low")


def test_a_dialect_is_its_description(session: Session) -> None:
    """Other marks and other words, nothing else: the same reader reads it."""
    other = dataclasses.replace(
        HARMONY, channel="<|constrain|>", constrain="<|channel|>", thinks="inner", answers="outer"
    )
    found = channels_of(session.vocab, other.channel, [other])
    assert found is not None
    text = "<|constrain|>inner<|message|>why<|end|><|start|>assistant<|constrain|>outer<|message|>so"
    assert split(found.text(ids(session, text))) == ("why", "so")
    assert found.text(found.tokens(f"{THINK}why{NO_MORE}so")) == f"{THINK}why{NO_MORE}so"
