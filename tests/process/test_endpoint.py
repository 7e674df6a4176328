"""The endpoint other programs use: a guarded port, the stock OpenAI client, and no input that breaks it."""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from processes import make_paths, until
from test_server import ENDLESS, Stream, ask, chat, stream, work
from toys import write_llama

from engine import errors
from engine.launcher import Handle, ensure_engine
from engine.probe import UnixConnection, call

TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>tools, to be called as <tool_call>: {{ tools | tojson }}<|im_end|>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>"
    "{% endfor %}<|im_start|>"
)
PICK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}},
            "required": ["colour", "sure"],
        },
    },
}
BOOK = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 12}, "kind": {"enum": ["novel", "poem"]}},
    "required": ["title", "kind"],
    "additionalProperties": False,
}
ORIGIN = "http://localhost:3000"


@contextmanager
def listening(engine: Handle, **body: Any) -> Iterator[tuple[int, str]]:
    """The port and the token of an endpoint that is open meanwhile."""
    opened = Stream(engine, {"port": 0, **body}, "/listen")
    try:
        place = next(opened.events())
        assert place["host"] == "127.0.0.1"
        yield place["port"], Path(place["token_file"]).read_text().strip()
    finally:
        opened.close()


@pytest.fixture(scope="module")
def port(loaded: Handle) -> Iterator[tuple[int, str]]:
    with listening(loaded, origins=[ORIGIN]) as found:
        yield found


@pytest.fixture(scope="module")
def client(port: tuple[int, str]) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{port[0]}/v1"
    with openai.OpenAI(base_url=url, api_key=port[1], max_retries=0, timeout=120) as found:
        yield found


@pytest.fixture(scope="module")
def toy() -> Iterator[Handle]:
    """An engine with a tiny model of random weights whose template has tools."""
    with tempfile.TemporaryDirectory(prefix="s2-") as root:
        model = write_llama(Path(root) / "toy.gguf", template=TOOL_TEMPLATE)
        handle = ensure_engine(make_paths(Path(root)), service=True)
        call(handle.socket, "POST", "/load", {"model": str(model), "n_ctx": 1024, "n_threads": 1})
        until(lambda: call(handle.socket, "GET", "/health")["status"] == "ok", 120)
        yield handle
        assert handle.process is not None
        handle.process.kill()
        handle.process.wait()


def get(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=named)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, body, reply.headers


# --- who gets in


def test_the_port_wants_the_token_and_the_hosts_own_name(port: tuple[int, str]) -> None:
    number, token = port
    shown = {"authorization": f"Bearer {token}"}
    assert get(number, "/v1/models", **shown)[0] == 200
    assert get(number, "/v1/models", **shown, host=f"localhost:{number}")[0] == 200
    assert get(number, "/health")[0] == 200
    status, body, headers = get(number, "/v1/models")
    assert (status, headers["www-authenticate"]) == (401, "Bearer")
    assert json.loads(body)["error"]["code"] == "unauthorized"
    for wrong in ("Bearer x", f"Basic {token}", f"Bearer {token}x", "Bearer", "Bearer \xe9"):
        assert get(number, "/v1/models", authorization=wrong)[0] == 401
    for foreign in ("evil.example", f"evil.example:{number}", "127.0.0.1.evil.example", "", "localhost:1"):
        assert get(number, "/v1/models", **shown, host=foreign)[0] in (400, 403)


def test_web_pages_are_refused_but_for_those_named(port: tuple[int, str]) -> None:
    number, token = port
    shown = {"authorization": f"Bearer {token}"}
    asked = {"access_control_request_method": "POST"}
    for origin in ("http://evil.example", "null", "http://localhost:3001", "https://localhost:3000"):
        status, _, headers = get(number, "/v1/models", **shown, origin=origin)
        assert (status, headers["access-control-allow-origin"]) == (403, None)
        assert get(number, "/v1/chat/completions", "OPTIONS", origin=origin, **asked)[0] == 403
    status, _, headers = get(number, "/v1/models", **shown, origin=ORIGIN)
    assert (status, headers["access-control-allow-origin"]) == (200, ORIGIN)
    status, _, headers = get(number, "/v1/chat/completions", "OPTIONS", origin=ORIGIN, **asked)
    assert (status, headers["access-control-allow-origin"]) == (204, ORIGIN)
    assert get(number, "/v1/models", origin=ORIGIN)[0] == 401


def test_what_rules_the_engine_is_not_on_the_port(port: tuple[int, str]) -> None:
    number, token = port
    for path in ("/shutdown", "/load", "/listen", "/budget", "/settings"):
        assert get(number, path, "POST", authorization=f"Bearer {token}")[0] == 404
    for path in ("/telemetry", "/handshake"):  # to look at
        assert get(number, path)[0] == 401
        assert get(number, path, "POST", authorization=f"Bearer {token}")[0] == 405


def test_the_token_file_is_for_this_user_alone_and_the_port_goes_with_who_opened_it(toy: Handle) -> None:
    with listening(toy) as (number, token):
        file = toy.paths.token
        assert (file.stat().st_mode & 0o777, len(token) >= 32) == (0o600, True)
        with pytest.raises(errors.Busy):
            call(toy.socket, "POST", "/listen", {"port": number})
    until(lambda: refuses(number))
    with listening(toy) as (_, again):
        assert again == token
    file.chmod(0o644)
    with pytest.raises(errors.EngineUnavailable, match="read by others"):
        call(toy.socket, "POST", "/listen", {})
    file.chmod(0o600)


def refuses(port: int) -> bool:
    try:
        get(port, "/health")
    except OSError:
        return True
    return False


# --- the stock client


def test_chat_with_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "Name a fruit."}],
        max_tokens=4,
        temperature=0,
        seed=1,
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logprobs=True,
        top_logprobs=2,
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    entries = choice.logprobs.content or []
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == choice.message.content
    assert all(entry.logprob <= entry.top_logprobs[0].logprob <= 0 for entry in entries)
    assert [len(entry.top_logprobs) for entry in entries] == [2] * 4
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4


@pytest.mark.parametrize("options", [None, {"include_usage": True}, {"include_usage": False}])
def test_a_stream_has_usage_when_asked(client: openai.OpenAI, options: Any) -> None:
    asked = {} if options is None else {"stream_options": options}
    chunks = list(
        client.chat.completions.create(
            model="any",
            messages=[{"role": "user", "content": "Name a fruit."}],
            max_tokens=3,
            stream=True,
            extra_body={"mode": "s2-exact", "draft_experts": 2, "draft_length": 2},
            **asked,
        )
    )
    wanted = bool(options and options["include_usage"])
    assert bool(chunks[-1].usage) == wanted
    assert all(chunk.choices for chunk in chunks[: -1 if wanted else None])
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"


@pytest.mark.parametrize("mode", ["ar", "s2-exact"])
def test_an_answer_in_a_wanted_format(client: openai.OpenAI, mode: str) -> None:
    answer = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": "A book, please."}],
        max_tokens=60,
        temperature=0.8,
        seed=3,
        response_format={"type": "json_schema", "json_schema": {"name": "book", "schema": BOOK}},
        extra_body={"mode": mode},
    )
    assert answer.choices[0].finish_reason == "stop"
    found = json.loads(answer.choices[0].message.content or "")
    assert found["kind"] in ("novel", "poem")
    assert len(found["title"]) <= 12


def test_the_rest_of_the_client(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    text = client.completions.create(
        model=model.id, prompt="One, two, three,", max_tokens=3, stop=["zz"], logprobs=1
    )
    logprobs = text.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.text_offset is not None
    assert (len(logprobs.tokens or []), logprobs.text_offset[0]) == (3, 0)
    for wrong in ({"n": 2}, {"logit_bias": {"1": 1}}, {"tools": [PICK]}):
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(
                model=model.id,
                messages=[{"role": "user", "content": "x"}],
                max_tokens=1,
                **wrong,  # type: ignore[arg-type]
            )
    stranger = client.with_options(api_key="wrong")
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick"}}])
def test_a_tool_that_must_be_called_is_called(toy: Handle, choice: Any) -> None:
    body = chat("Which?", max_tokens=200, tools=[PICK], tool_choice=choice, temperature=1, seed=5)
    (found,) = ask(toy, body)["choices"]
    assert found["finish_reason"] == "tool_calls"
    (made,) = found["message"]["tool_calls"]
    assert made["function"]["name"] == "pick"
    arguments = json.loads(made["function"]["arguments"])
    assert arguments["colour"] in ("red", "green")
    assert isinstance(arguments["sure"], bool)
    told = [
        *body["messages"],
        {"role": "assistant", "content": None, "tool_calls": [made]},
        {"role": "tool", "tool_call_id": made["id"], "content": "done"},
    ]
    assert ask(toy, {"messages": told, "tools": [PICK], "max_tokens": 2})["choices"]


# --- waiting, counting, figures


def test_who_waits_is_told_how_many_come_first(toy: Handle) -> None:
    with stream(toy, chat(**ENDLESS, user="a")) as first:
        next(first.events())
        with (
            stream(toy, chat(**ENDLESS, user="a")) as second,
            stream(toy, chat(**ENDLESS, user="b")) as third,
        ):
            until(lambda: work(toy) == (1, 2))
            assert comment(second) == b": 1 ahead in the queue\n"
            assert comment(third) == b": 2 ahead in the queue\n"
            second.close()
            assert comment(third) == b": 1 ahead in the queue\n"
    until(lambda: work(toy) == (0, 0))


def comment(opened: Stream) -> bytes:
    """The next one about the queue: headers came at once, pings do not count."""
    while line := opened.reply.readline():
        if b"ahead" in line:
            return line
    return b""


def test_a_client_that_leaves_frees_the_engine_also_during_its_prompt(
    loaded: Handle, port: tuple[int, str]
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port[0], timeout=60)
    body = json.dumps(chat("sea " * 3000, **ENDLESS, stream=True))
    connection.request("POST", "/v1/chat/completions", body, {"authorization": f"Bearer {port[1]}"})
    until(lambda: work(loaded) == (1, 0))
    connection.close()
    until(lambda: work(loaded) == (0, 0))


def test_tokens_and_figures(toy: Handle) -> None:
    tokens = call(toy.socket, "POST", "/tokenize", {"content": "hi there"})["tokens"]
    assert call(toy.socket, "POST", "/detokenize", {"tokens": tokens})["content"].strip() == "hi there"
    with pytest.raises(errors.BadRequest, match="no token"):
        call(toy.socket, "POST", "/detokenize", {"tokens": [1 << 30]})
    before = figures(toy)
    ask(toy, chat(max_tokens=5, ignore_eos=True))
    after = figures(toy)
    assert after["llamacpp:tokens_predicted_total"] - before["llamacpp:tokens_predicted_total"] == 5
    assert after["llamacpp:requests_processing"] == 0


def figures(engine: Handle) -> dict[str, float]:
    connection = UnixConnection(engine.socket, 30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in rows}


# --- anything at all


def test_no_request_of_our_own_description_breaks_it(toy: Handle) -> None:
    schemathesis = pytest.importorskip("schemathesis")  # from Python 3.11 on
    hypothesis = pytest.importorskip("hypothesis")
    broken: list[str] = []
    described = call(toy.socket, "GET", "/openapi.json")
    schema = schemathesis.openapi.from_dict(described)
    with listening(toy) as (number, token):
        headers = {"authorization": f"Bearer {token}"}
        for result in schema.get_all_operations():
            operation = result.ok()

            @hypothesis.settings(
                max_examples=12,
                deadline=None,
                database=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.seed(7)
            @hypothesis.given(case=operation.as_strategy())
            def send(case: Any) -> None:
                if isinstance(case.body, dict) and case.path.startswith("/v1/"):
                    case.body |= {"max_tokens": 2}
                    case.body.pop("max_completion_tokens", None)
                reply = case.call(base_url=f"http://127.0.0.1:{number}", headers=headers)
                if reply.status_code >= 500:
                    broken.append(f"{case.path}: {case.body!r}: {reply.text}")

            send()
    assert not broken
    assert "Traceback" not in toy.paths.log.read_text()
