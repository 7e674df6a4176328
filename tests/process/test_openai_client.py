"""What people do with the stock OpenAI client, done to a real engine."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from endpoint import BOOK, PICK, listening
from processes import until
from test_server import ENDLESS, chat, stream, work

from engine.launcher import Handle
from engine.messages import PING_S

HI: Any = [{"role": "user", "content": "Tell me a long story."}]  # no test lets it come to its end
LONG: dict[str, Any] = {"max_tokens": 3000, "extra_body": {"ignore_eos": True}}


class Book(pydantic.BaseModel):
    kind: Literal["novel", "poem"]
    lent: bool | None


def client_of(port: tuple[int, str]) -> openai.OpenAI:
    url = f"http://127.0.0.1:{port[0]}/v1"
    return openai.OpenAI(base_url=url, api_key=port[1], max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def client(port: tuple[int, str]) -> Iterator[openai.OpenAI]:
    with client_of(port) as found:
        yield found


@pytest.fixture(scope="module")
def tools_client(toy: Handle) -> Iterator[openai.OpenAI]:
    """Of the tiny model, whose template has tools."""
    with listening(toy) as port, client_of(port) as found:
        yield found


def say(client: openai.OpenAI, **fields: Any) -> Any:
    return client.chat.completions.create(model="any", messages=fields.pop("messages", HI), **fields)


# --- answers


def test_chat_with_logprobs(client: openai.OpenAI) -> None:
    answer = say(
        client,
        max_tokens=4,
        temperature=0,
        seed=1,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logprobs=True,
        top_logprobs=2,
    )
    (choice,) = answer.choices
    entries = choice.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == choice.message.content
    assert all(entry.logprob <= entry.top_logprobs[0].logprob <= 0 for entry in entries)
    assert [len(entry.top_logprobs) for entry in entries] == [2] * 4
    assert answer.usage.completion_tokens == 4


def test_a_streamed_answer_is_the_whole_one(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "logprobs": True}
    whole = say(client, **asked).choices[0]
    chunks = list(say(client, **asked, stream=True))
    choices = [chunk.choices[0] for chunk in chunks]
    assert (choices[0].delta.role, choices[-1].finish_reason) == ("assistant", "length")
    assert "".join(choice.delta.content or "" for choice in choices) == whole.message.content
    entries = [entry for choice in choices if choice.logprobs for entry in choice.logprobs.content]
    assert [entry.token for entry in entries] == [entry.token for entry in whole.logprobs.content]
    assert len({chunk.id for chunk in chunks}) == 1


@pytest.mark.parametrize(
    "options", [..., None, {"include_usage": True}, {"include_usage": False}, {"include_usage": None}]
)
def test_a_stream_has_usage_when_asked(client: openai.OpenAI, options: Any) -> None:
    asked = {} if options is ... else {"stream_options": options}
    speculating = {"mode": "s2-exact", "draft_experts": 2, "draft_length": 2}
    chunks = list(say(client, max_tokens=3, stream=True, extra_body=speculating, **asked))
    wanted = options not in (..., None) and bool(options["include_usage"])
    assert all(chunk.choices for chunk in chunks[: -1 if wanted else None])
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    if wanted:
        usage, whole = chunks[-1].usage, say(client, max_tokens=3).usage
        assert (usage.completion_tokens, usage.prompt_tokens) == (3, whole.prompt_tokens)
        assert usage.total_tokens == usage.prompt_tokens + 3
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


@pytest.mark.parametrize("mode", ["ar", "s2-exact", "ngram", "auto"])
def test_an_answer_that_is_cut_says_how_long_it_is_and_goes_on_from_there(
    client: openai.OpenAI, mode: str
) -> None:
    """Also where the cut falls inside a block of drafts: in text, usage and what the next turn finds."""
    more = {"mode": mode, "draft_length": 8, "ignore_eos": True, "return_tokens": True}
    for length in range(1, 8):
        answer = say(client, max_tokens=length, temperature=0, extra_body=more)
        assert (len(answer.tokens), answer.choices[0].finish_reason) == (length, "length")
        assert answer.usage.completion_tokens == length
        told = [*HI, answer.choices[0].message, *HI]
        after = say(client, messages=told, max_tokens=1, extra_body=more)
        unread = 1  # the last token was drawn and not decoded
        assert after.usage.prompt_tokens_details.cached_tokens >= answer.usage.prompt_tokens + length - unread


def test_a_seed_repeats_an_answer_and_another_does_not(client: openai.OpenAI) -> None:
    def text(seed: int) -> str:
        return str(say(client, temperature=1, seed=seed, max_tokens=16).choices[0].message.content)

    assert text(7) == text(7)
    assert len({text(seed) for seed in range(4)}) > 1


def test_stop_strings_end_an_answer_before_them(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
    whole = say(client, **asked).choices[0].message.content
    stop = whole[len(whole) // 2 :][:3]
    for chosen in (stop, ["\x00never", stop]):
        (choice,) = say(client, **asked, stop=chosen).choices
        assert (choice.message.content, choice.finish_reason) == (whole[: whole.index(stop)], "stop")
    chunks = list(say(client, **asked, stop=[stop], stream=True))
    told = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert told == whole[: whole.index(stop)]


def test_texts_go_on(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "prompt": "One, two, three,", "max_tokens": 3, "temperature": 0}
    whole = client.completions.create(**asked, stop=["zz"], logprobs=1)
    (choice,) = whole.choices
    assert choice.logprobs is not None
    assert choice.logprobs.text_offset is not None
    assert (len(choice.logprobs.tokens or []), choice.logprobs.text_offset[0]) == (3, 0)
    pieces = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(piece.text for piece in pieces) == choice.text
    assert pieces[-1].finish_reason == "length"


# --- formats and tools


@pytest.mark.parametrize("mode", ["ar", "s2-exact"])
def test_an_answer_in_a_wanted_format(client: openai.OpenAI, mode: str) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "book", "schema": BOOK}}
    fields = {"max_tokens": 60, "temperature": 0.8, "seed": 3, "extra_body": {"mode": mode}}
    (choice,) = say(client, response_format=wanted, **fields).choices
    assert choice.finish_reason == "stop"
    found = json.loads(choice.message.content)
    assert found["kind"] in ("novel", "poem")
    assert len(found["title"]) <= 12


def test_the_clients_own_parser_gets_its_object(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "any", "messages": HI, "response_format": Book, "max_tokens": 60}
    answer = client.chat.completions.parse(**asked)
    assert isinstance(answer.choices[0].message.parsed, Book)
    with client.chat.completions.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        last = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(last.choices[0].message.parsed, Book)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**{**asked, "max_tokens": 2})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
def test_a_tool_that_must_be_called_is_called(tools_client: openai.OpenAI, choice: Any) -> None:
    asked: dict[str, Any] = {"tools": [PICK], "tool_choice": choice, "max_tokens": 200, "temperature": 1}
    answer = say(tools_client, **asked, seed=5).choices[0]
    assert answer.finish_reason == "tool_calls"
    (made,) = answer.message.tool_calls
    assert made.function.name == "pick"
    arguments = json.loads(made.function.arguments)
    assert arguments["colour"] in ("red", "green")
    assert isinstance(arguments["sure"], bool)
    told = [*HI, answer.message, {"role": "tool", "tool_call_id": made.id, "content": "done"}]
    assert say(tools_client, messages=told, tools=[PICK], max_tokens=2).choices
    with tools_client.chat.completions.stream(model="any", messages=HI, **asked, seed=5) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    assert (streamed.message.tool_calls or [])[0].function.arguments == made.function.arguments


# --- what is refused


@pytest.mark.parametrize(
    "wrong", [{"n": 2}, {"logit_bias": {"1": 1}}, {"tools": [PICK]}, {"temperature": -1}, {"messages": []}]
)
def test_what_is_not_offered_is_refused_by_name(client: openai.OpenAI, wrong: dict[str, Any]) -> None:
    for streamed in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            say(client, **wrong, max_tokens=1, stream=streamed)
        (name,) = wrong
        assert name.rstrip("s") in refused.value.message
        assert refused.value.type == "invalid_request_error"


def test_a_prompt_that_is_too_long_says_so(client: openai.OpenAI) -> None:
    for streamed in (False, True):
        with pytest.raises(openai.BadRequestError, match="the context holds 4096") as refused:
            say(client, messages=[{"role": "user", "content": "sea " * 9000}], stream=streamed)
        assert refused.value.code == "context_full"


def test_models_and_strangers(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError, match="no model 'gpt/4 o' is loaded"):
        client.models.retrieve("gpt/4 o")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="any", input="x")


# --- the wire, and leaving


def test_raw_answers_and_streams(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="any", messages=HI, max_tokens=2)
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().choices[0].finish_reason == "length"
    asked = client.chat.completions.with_streaming_response
    with asked.create(model="any", messages=HI, max_tokens=2, stream=True) as streamed:
        lines = [line for line in streamed.iter_lines() if line]
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert lines[-1] == "data: [DONE]"
    assert all(json.loads(line.removeprefix("data: "))["choices"] for line in lines[:-1])


def test_who_waits_hears_that_the_engine_lives(loaded: Handle, client: openai.OpenAI) -> None:
    """Signs of life come before patience ends, and the stock client passes over them."""
    patience_s = PING_S + 2
    hasty = client.with_options(timeout=httpx.Timeout(5, read=patience_s))
    with stream(loaded, chat(**ENDLESS)) as first:
        until(lambda: work(loaded) == (1, 0))
        leaving = threading.Timer(patience_s + 2, first.close)
        leaving.start()
        began = time.monotonic()
        chunks = list(say(hasty, max_tokens=2, stream=True))
        leaving.join()
    assert chunks[-1].choices[0].finish_reason == "length"
    assert time.monotonic() - began > patience_s


def test_who_closes_a_stream_frees_the_engine(loaded: Handle, client: openai.OpenAI) -> None:
    with say(client, **LONG, stream=True) as stream:
        next(chunk for chunk in stream if chunk.choices[0].delta.content)
    until(lambda: work(loaded) == (0, 0))


def test_who_loses_patience_frees_the_engine(loaded: Handle, client: openai.OpenAI) -> None:
    hasty = client.with_options(timeout=httpx.Timeout(5, read=0.5))
    with pytest.raises(openai.APITimeoutError):
        say(hasty, **LONG)
    until(lambda: work(loaded) == (0, 0))


async def test_many_at_once_get_each_their_own(port: tuple[int, str]) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port[0]}/v1", api_key=port[1]) as client:

        async def answer(topic: str, stream: bool) -> str:
            messages: Any = [{"role": "user", "content": f"Write about {topic} " * 9}]
            asked: dict[str, Any] = {"model": "any", "messages": messages, "max_tokens": 12, "temperature": 0}
            if not stream:
                whole = await client.chat.completions.create(**asked)
                return str(whole.choices[0].message.content)
            found = ""
            async for chunk in await client.chat.completions.create(**asked, stream=True):
                found += chunk.choices[0].delta.content or ""
            return found

        topics = ("bees", "glaciers", "ships", "bread")
        alone = [await answer(topic, False) for topic in topics]
        assert len(set(alone)) > 1
        assert await asyncio.gather(*(answer(topic, True) for topic in topics)) == alone
