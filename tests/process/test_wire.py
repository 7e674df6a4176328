"""Requests of the HTTP interface: what is read, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from toys import write_llama

from engine.call import parse_chat, parse_completion
from engine.errors import BadRequest
from engine.fields import parse_object
from engine.message import Message
from engine.model import files_of
from engine.request import Speculation
from engine.wire import parse_load, parse_settings, parse_watch

HI = [{"role": "user", "content": "hi"}]


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def test_a_bare_chat_request_has_the_defaults() -> None:
    call = parse_chat({"messages": HI, "model": "whatever", "user": "me"})
    assert call.messages == (Message("user", "hi"),)
    assert call.sampling == {}
    assert (call.max_tokens, call.stop, call.stream, call.include_usage) == (None, (), False, False)


def test_blocks_are_shown_only_when_asked_for() -> None:
    assert not parse_chat({"messages": HI}).return_blocks
    assert parse_completion({"prompt": "hi", "return_blocks": True}).return_blocks
    with pytest.raises(BadRequest, match="return_blocks is not true or false"):
        parse_chat({"messages": HI, "return_blocks": "yes"})
    assert parse_watch({"request_id": "one", "blocks": False}) == ("one", False)
    for body in ({}, {"blocks": True}, {"request_id": "one"}, {"request_id": "", "blocks": True}):
        with pytest.raises(BadRequest, match=r"request_id is missing|blocks is not"):
            parse_watch(body)


def test_null_means_absent() -> None:
    names = ("temperature", "top_p", "seed", "stop", "max_tokens", "stream", "stream_options", "tools", "n")
    assert parse_chat({"messages": HI, **dict.fromkeys(names)}) == parse_chat({"messages": HI})


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parse_chat({"messages": [{"role": "developer", "content": parts}]}).messages == (
        Message("system", "ab"),
    )


@pytest.mark.parametrize(
    ("fields", "value"),
    [
        ({"max_completion_tokens": 5, "max_tokens": 9}, 5),
        ({"max_tokens": 9}, 9),
        ({"n_predict": 3}, 3),
        ({"max_tokens": 7.0}, 7),
        ({"max_tokens": -1}, None),
    ],
)
def test_max_tokens(fields: dict[str, Any], value: int | None) -> None:
    assert parse_chat({"messages": HI, **fields}).max_tokens == value


def test_speculation_of_the_request_goes_over_the_settings() -> None:
    defaults = Speculation(mode="ar", draft_experts=3, draft_length=5)
    call = parse_chat({"messages": HI, "mode": "s2-exact", "draft_length": 2})
    assert call.speculation_over(defaults) == Speculation("s2-exact", draft_experts=3, draft_length=2)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [*HI, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, "messages[0].content"),
        ({"messages": [{"role": "", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens"),
        ({"messages": HI, "max_tokens": "9"}, "max_tokens"),
        ({"messages": HI, "max_tokens": True}, "max_tokens"),
        ({"messages": HI, "temperature": "hot"}, "temperature"),
        ({"messages": HI, "temperature": -1}, "temperature"),
        ({"messages": HI, "top_k": 1.5}, "top_k"),
        ({"messages": HI, "seed": -2}, "seed"),
        ({"messages": HI, "stream": "yes"}, "stream"),
        ({"messages": HI, "stream_options": True}, "stream_options"),
        ({"messages": HI, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"messages": HI, "stop": [""]}, "stop"),
        ({"messages": HI, "stop": 5}, "stop"),
        ({"messages": HI, "mode": "warp"}, "mode"),
        ({"messages": HI, "draft_length": 99}, "draft_length"),
        ({"messages": HI, "draft_experts": 0}, "draft_experts"),
        ({"messages": HI, "request_id": ""}, "request_id"),
        ({"messages": HI, "tools": [{"type": "function"}]}, "tools[0].function"),
        ({"messages": HI, "n": 2}, "n"),
        ({"messages": HI, "top_logprobs": 2}, "logprobs"),
        ({"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"messages": HI, "logprobs": 3}, "logprobs"),
        ({"messages": HI, "logit_bias": {"1": 5}}, "logit_bias"),
        ({"messages": HI, "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": HI, "response_format": "json"}, "response_format"),
        ({"messages": HI, "response_format": {"type": "json_schema"}}, "json_schema.schema"),
        ({"messages": HI, "response_format": json_schema({"minimum": 3})}, "schema.minimum"),
        ({"messages": HI, "response_format": json_schema({"type": "string", "pattern": "^(a$"})}, "pattern"),
        ({"messages": HI, "response_format": json_schema({"$ref": "#/$defs/x"})}, "schema"),
        (
            {"messages": HI, "response_format": {"type": "json_object"}, "ignore_eos": True},
            "ignore_eos",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(body: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_chat(body)
    assert named in caught.value.message


@pytest.mark.parametrize(
    "field",
    [
        {"tools": []},
        {"n": 1},
        {"logprobs": False},
        {"response_format": {"type": "text"}},
        {"dry_multiplier": 0.0},
        {"logit_bias": {}},
    ],
)
def test_unsupported_fields_with_harmless_values_pass(field: dict[str, Any]) -> None:
    assert parse_chat({"messages": HI, **field}) == parse_chat({"messages": HI})


def test_a_completion_needs_a_prompt() -> None:
    assert parse_completion({"prompt": "once"}).prompt == "once"
    for prompt in (None, 5, ["once"], [1, 2]):
        with pytest.raises(BadRequest, match="prompt"):
            parse_completion({"prompt": prompt})


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"5", b'{"a": NaN}', b'{"a": Infinity}', b"\xff", b"[" * 100_000, b'{"a": 1} x'],
)
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="the body"):
        parse_object(body)


def test_numbers_too_large_for_a_float_are_refused() -> None:
    with pytest.raises(BadRequest, match="temperature"):
        parse_chat(parse_object(json.dumps({"messages": HI}).encode()[:-1] + b', "temperature": 1e999}'))


def test_load() -> None:
    wishes = {"n_ctx": 512, "mode": "ar", "cache_type": "q8_0", "budget": "25%"}
    load = parse_load({"model": "/m.gguf", "n_threads": None, **wishes})
    assert (str(load.path), load.wishes) == ("/m.gguf", wishes)
    for body in (
        {},
        {"model": ""},
        {"model": "m.gguf"},
        {"model": "/m", "n_ctx": 0},
        {"model": "/m", "mode": "x"},
        {"model": "/m", "cache_type": "q4_0"},
        {"model": "/m", "cache_type": 8},
        {"model": "/m", "budget": "much"},
        {"model": "/m", "budget": 0},
        {"model": "/m", "budget": 1.5},
    ):
        with pytest.raises(BadRequest):
            parse_load(body)


@pytest.mark.parametrize("per_file", [0, 7])
def test_a_load_knows_its_files_from_others_of_the_same_names(per_file: int, tmp_path: Path) -> None:
    """Every file of a split set; while one is missing there is nothing to know."""
    model = write_llama(tmp_path / "toy.gguf", tensors_per_file=per_file)
    load = parse_load({"model": str(model)}).stamped()
    for file in files_of(model):
        assert parse_load({"model": str(file)}).stamped() == load, "any of them stands for the set"
    for file in files_of(model):
        other = Path(shutil.copy2(file, tmp_path / "other"))
        other.replace(file)
        before, load = load, load.stamped()
        assert load != before
    files_of(model)[-1].unlink()
    unknown = parse_load({"model": str(model)})
    assert unknown.stamped() == unknown


def test_settings() -> None:
    assert parse_settings({"draft_length": 3}) == {"draft_length": 3}
    for body in ({"temperature": 1}, {"mode": "x"}, {"draft_length": "3"}):
        with pytest.raises(BadRequest):
            parse_settings(body)
