"""A model of channels behind the endpoint: the stock client thinks apart, calls a tool and goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from endpoint import PICK, listening
from harmony import write_harmony
from processes import until

from engine.channels import HARMONY
from engine.launcher import Handle
from engine.probe import call

ANY_TOKEN = {"top_k": 0, "min_p": 0}  # with a high temperature a random model tries everything


def load(engine: Handle, path: Path) -> None:
    call(engine.socket, "POST", "/load", {"model": str(path), "n_ctx": 2048, "n_threads": 1})
    until(lambda: call(engine.socket, "GET", "/health")["status"] == "ok")


def test_the_stock_client_calls_a_tool_and_goes_on(engine: Handle, tmp_path: Path) -> None:
    load(engine, write_harmony(tmp_path / "toy.gguf"))
    with listening(engine) as (port, token):
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=token, max_retries=0)
        messages: list[Any] = [{"role": "user", "content": "Pick a colour."}]

        def ask(seed: int, **fields: Any) -> Any:
            return client.chat.completions.create(
                model="any", messages=messages, tools=[PICK], temperature=100, top_p=1, seed=seed,
                max_tokens=300, reasoning_effort="low", extra_body=ANY_TOKEN, **fields,
            )  # fmt: skip

        answers = (ask(seed, tool_choice="required") for seed in range(20))
        answer = next(found for found in answers if found.choices[0].finish_reason == "tool_calls")
        message = answer.choices[0].message
        assert not message.content
        (made,) = message.tool_calls
        assert made.function.name == "pick"
        assert set(json.loads(made.function.arguments)) == {"colour", "sure"}
        messages += [message.model_dump(), {"role": "tool", "tool_call_id": made.id, "content": "taken"}]
        with ask(1, stream=True) as chunks:
            deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        told = "".join((d.content or "") + (getattr(d, "reasoning_content", None) or "") for d in deltas)
        assert not [mark for mark in HARMONY.marks if mark in told]
        with pytest.raises(openai.BadRequestError, match="reasoning_effort"):
            client.chat.completions.create(
                model="any", messages=messages, reasoning_effort="minimal", extra_body={}
            )
        client.close()


def test_levels_change_the_prompt_and_thoughts_of_a_finished_turn_are_not_counted(
    engine: Handle, tmp_path: Path
) -> None:
    load(engine, write_harmony(tmp_path / "toy.gguf"))

    def count(*messages: dict[str, str], **fields: Any) -> int:
        return int(call(engine.socket, "POST", "/count", {"messages": list(messages), **fields})["tokens"])

    hi, answer = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}
    assert count(hi, reasoning_effort="medium") == count(hi)
    assert count(hi, reasoning_effort="low") == count(hi) - len("medium") + len("low")
    thoughtful = {**answer, "reasoning_content": "a long thought " * 9}
    marked = {**answer, "content": "<|~t|>a long thought<|~/t|>so"}
    assert count(hi, answer, hi) == count(hi, thoughtful, hi) == count(hi, marked, hi)


def test_a_raw_text_shows_the_marks_that_a_raw_prompt_is_made_of(engine: Handle, tmp_path: Path) -> None:
    """Who writes the dialect's marks reads them too: without them nobody could tell thoughts from answers."""
    load(engine, write_harmony(tmp_path / "toy.gguf"))

    def post(path: str, **body: Any) -> Any:
        return call(engine.socket, "POST", path, body, timeout_s=120)

    ids = {mark: post("/tokenize", content=mark)["tokens"] for mark in HARMONY.marks}
    assert [len(found) for found in ids.values()] == [1] * len(HARMONY.marks)
    seen = 0
    for seed in range(4):
        fields = {"max_tokens": 200, "temperature": 100, "top_p": 1, "seed": seed, "return_tokens": True}
        prompt = "<|start|>user<|message|>hi<|end|><|start|>assistant"
        answer = post("/v1/completions", prompt=prompt, ignore_eos=True, **fields, **ANY_TOKEN)
        for mark, (token,) in ids.items():
            assert answer["choices"][0]["text"].count(mark) == answer["tokens"].count(token)
            seen += answer["tokens"].count(token)
    assert seen > 0
