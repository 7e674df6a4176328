"""Counting a prompt, and letting an answer go on, on a real engine."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from processes import until

from engine import errors
from engine.launcher import Handle
from engine.probe import UnixConnection, call

QUESTION = [{"role": "user", "content": "Tell me about the sea."}]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "return_tokens": True}


def ask(engine: Handle, messages: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
    body = {"messages": messages, **GREEDY, **fields}
    return call(engine.socket, "POST", "/v1/chat/completions", body, timeout_s=120)


def count(engine: Handle, **body: Any) -> int:
    return int(call(engine.socket, "POST", "/count", body, timeout_s=60)["tokens"])


def test_a_count_is_what_the_prompt_takes(loaded: Handle) -> None:
    assert count(loaded, messages=QUESTION) == ask(loaded, QUESTION, max_tokens=1)["usage"]["prompt_tokens"]
    assert count(loaded, prompt="sea") == 1
    with pytest.raises(errors.ContextFull):
        count(loaded, prompt="word " * 2_000_000)


def test_a_count_does_not_wait_for_an_answer(loaded: Handle) -> None:
    done = threading.Event()

    def work() -> None:
        ask(loaded, QUESTION, max_tokens=600, request_id="long")
        done.set()

    threading.Thread(target=work).start()
    try:
        until(lambda: running(loaded))
        assert count(loaded, messages=QUESTION) > 10
        assert not done.is_set()
    finally:
        call(loaded.socket, "POST", "/cancel", {"request_id": "long"})
    assert done.wait(60)


def running(engine: Handle) -> bool:
    connection = UnixConnection(engine.socket, 30)
    try:
        connection.request("GET", "/metrics")
        return b"llamacpp:requests_processing 1" in connection.getresponse().read()
    finally:
        connection.close()


@pytest.mark.parametrize("at", [1, 9, 24])
def test_an_answer_goes_on_as_if_it_had_not_been_stopped(loaded: Handle, at: int) -> None:
    whole = ask(loaded, QUESTION, max_tokens=32)
    begun = ask(loaded, QUESTION, max_tokens=at)
    text = begun["choices"][0]["message"]["content"]
    told = [*QUESTION, {"role": "assistant", "content": text}]
    rest = ask(loaded, told, max_tokens=32 - at, continue_final_message=True)
    assert begun["tokens"] + rest["tokens"] == whole["tokens"]
    assert text + rest["choices"][0]["message"]["content"] == whole["choices"][0]["message"]["content"]
    # The whole answer is known by its ids now: the next turn finds it in the cache.
    told[-1]["content"] = whole["choices"][0]["message"]["content"]
    following = ask(loaded, [*told, {"role": "user", "content": "And?"}], max_tokens=1)
    assert following["timings"]["cache_n"] >= count(loaded, messages=QUESTION) + 30


@pytest.mark.parametrize(
    "fields",
    [
        {"continue_final_message": True},
        {"continue_final_message": "yes"},
        {"chat_template_kwargs": {"enable_thinking": "no"}},
        {"chat_template_kwargs": {"other": 1}},
        {"chat_template_kwargs": {"enable_thinking": False}},  # this model's template has no such switch
        {"reasoning_format": "wrong"},
    ],
)
def test_what_makes_no_sense_is_refused(loaded: Handle, fields: dict[str, Any]) -> None:
    with pytest.raises(errors.BadRequest):
        ask(loaded, QUESTION, max_tokens=1, **fields)
