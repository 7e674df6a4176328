"""The HTTP interface of a real engine with the embedded model."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from processes import LOAD, until

from engine import errors
from engine.launcher import Handle
from engine.model import read_model_info
from engine.paths import EMBEDDED_MODEL
from engine.probe import UnixConnection, call

ENDLESS: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True, "temperature": 0}
SHORT: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}


def chat(text: str = "Tell me about the sea.", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def ask(engine: Handle, body: dict[str, Any], path: str = "/v1/chat/completions") -> dict[str, Any]:
    return call(engine.socket, "POST", path, body, timeout_s=120)


class Stream:
    """An open stream of events, read as a stock client would read it."""

    def __init__(self, engine: Handle, body: dict[str, Any] | None, path: str) -> None:
        self.connection = UnixConnection(engine.socket, 120)
        self.connection.request("GET" if body is None else "POST", path, json.dumps(body) if body else None)
        self.reply = self.connection.getresponse()

    def events(self) -> Iterator[Any]:
        while line := self.reply.readline():
            if line.startswith(b"data: "):
                data = line[6:].strip()
                yield data.decode() if data == b"[DONE]" else json.loads(data)

    def close(self) -> None:
        self.reply.close()
        self.connection.close()


@contextmanager
def stream(
    engine: Handle, body: dict[str, Any] | None, path: str = "/v1/chat/completions"
) -> Iterator[Stream]:
    opened = Stream(engine, None if body is None else {"stream": True, **body}, path)
    try:
        yield opened
    finally:
        opened.close()


def snapshot(engine: Handle) -> dict[str, Any]:
    with stream(engine, None, "/telemetry") as opened:
        found: dict[str, Any] = next(opened.events())
        return found


def work(engine: Handle) -> tuple[int, int]:
    found = snapshot(engine)
    return found["running"], found["queued"]


def is_idle(engine: Handle) -> bool:
    """The engine computes nothing: its processor time stands still."""
    process = psutil.Process(engine.hello.pid)
    return process.cpu_percent(0.3) < 20


def text_of(events: list[Any]) -> str:
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events if event["choices"])


def test_handshake(loaded: Handle) -> None:
    hello = call(loaded.socket, "GET", "/handshake")
    assert hello["api"] == [1, 0]
    assert hello["pid"] == loaded.hello.pid
    assert hello["model"] == "ready"


def test_model_list(loaded: Handle) -> None:
    (model,) = call(loaded.socket, "GET", "/v1/models")["data"]
    assert model["meta"]["n_ctx"] == 4096
    assert model["meta"]["size"] == read_model_info(EMBEDDED_MODEL).size_bytes


def test_a_whole_answer_and_a_streamed_one_are_the_same(loaded: Handle) -> None:
    whole = ask(loaded, chat(**SHORT, return_tokens=True))
    with stream(loaded, chat(**SHORT, return_tokens=True)) as opened:
        assert opened.reply.status == 200
        assert opened.reply.headers["content-type"].startswith("text/event-stream")
        *events, done = opened.events()
    assert done == "[DONE]"
    assert text_of(events) == whole["choices"][0]["message"]["content"] != ""
    assert [token for event in events for token in event.get("tokens", [])] == whole["tokens"]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert events[-1]["s2"] == whole["s2"] == {"mode": "auto", "exact": True, "finish": "max_tokens"}
    assert whole["usage"]["completion_tokens"] == len(whole["tokens"]) == 12
    assert whole["usage"]["prompt_tokens"] == whole["timings"]["prompt_n"] + whole["timings"]["cache_n"]
    assert all("usage" not in event for event in events)


def test_usage_is_streamed_when_asked_for(loaded: Handle) -> None:
    with stream(loaded, chat(**SHORT, stream_options={"include_usage": True})) as opened:
        *_, usage, done = opened.events()
    assert (usage["choices"], usage["usage"]["completion_tokens"], done) == ([], 12, "[DONE]")


def test_a_raw_completion(loaded: Handle) -> None:
    answer = ask(loaded, {"prompt": "Once upon a time", **SHORT}, "/v1/completions")
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["text"]


def test_progress_and_timings_are_streamed_when_asked_for(loaded: Handle) -> None:
    body = chat("word " * 900, **SHORT, return_progress=True, timings_per_token=True)
    with stream(loaded, body) as opened:
        *events, _ = opened.events()
    progress = [event["prompt_progress"] for event in events if "prompt_progress" in event]
    assert progress
    assert all(0 <= step["cache"] <= step["processed"] <= step["total"] for step in progress)
    assert all("timings" in event for event in events if text_of([event]))


@pytest.mark.parametrize("mode", ["ar", "s2-exact"])
def test_the_mode_is_a_field_of_the_request(loaded: Handle, mode: str) -> None:
    answer = ask(loaded, chat(**SHORT, mode=mode))
    assert answer["s2"]["mode"] == mode


def test_cancel_ends_a_stream_with_its_text(loaded: Handle) -> None:
    with stream(loaded, chat(**ENDLESS, request_id="one")) as opened:
        seen = opened.events()
        events = [next(event for event in seen if text_of([event]))]
        assert call(loaded.socket, "POST", "/cancel", {"request_id": "one"}) == {"cancelled": True}
        events += [event for event in seen if event != "[DONE]"]
    assert events[-1]["s2"]["finish"] == "cancel"
    until(lambda: is_idle(loaded))
    assert call(loaded.socket, "POST", "/cancel", {"request_id": "one"}) == {"cancelled": False}


def test_cancel_reaches_a_long_prompt(loaded: Handle) -> None:
    with stream(loaded, chat("sea " * 3000, **ENDLESS, request_id="long", return_progress=True)) as opened:
        until(lambda: work(loaded) == (1, 0))
        call(loaded.socket, "POST", "/cancel", {"request_id": "long"})
        *_, end, done = opened.events()
    assert (end["s2"]["finish"], done) == ("cancel", "[DONE]")
    until(lambda: is_idle(loaded))


def test_a_stream_whose_client_left_is_stopped(loaded: Handle) -> None:
    with stream(loaded, chat(**ENDLESS)) as opened:
        next(opened.events())
        assert work(loaded) == (1, 0)
    until(lambda: work(loaded) == (0, 0))
    until(lambda: is_idle(loaded))


def test_a_whole_answer_whose_client_left_is_stopped(loaded: Handle) -> None:
    connection = UnixConnection(loaded.socket, 60)
    connection.request("POST", "/v1/chat/completions", json.dumps(chat(**ENDLESS)))
    until(lambda: work(loaded) == (1, 0))
    connection.close()
    until(lambda: work(loaded) == (0, 0))
    until(lambda: is_idle(loaded))


def test_requests_wait_for_their_turn_and_do_not_mix(loaded: Handle) -> None:
    texts = ("Name a fruit.", "Name a river.")
    alone = {text: ask(loaded, chat(text, **SHORT))["choices"] for text in texts}
    together: dict[str, Any] = {}

    def ask_too(text: str) -> None:
        together[text] = ask(loaded, chat(text, **SHORT))["choices"]

    with stream(loaded, chat(**ENDLESS, request_id="first")) as opened:
        next(opened.events())
        threads = [threading.Thread(target=ask_too, args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        until(lambda: work(loaded) == (1, 2))
    for thread in threads:
        thread.join()
    assert together == alone


def test_a_request_in_the_queue_can_be_cancelled_or_left(loaded: Handle) -> None:
    with stream(loaded, chat(**ENDLESS)) as running:
        next(running.events())
        with stream(loaded, chat(**ENDLESS, request_id="queued")) as queued:
            until(lambda: work(loaded) == (1, 1))
            call(loaded.socket, "POST", "/cancel", {"request_id": "queued"})
            *_, end, done = queued.events()
            assert (end["s2"]["finish"], done) == ("cancel", "[DONE]")
        with stream(loaded, chat(**ENDLESS)):
            until(lambda: work(loaded) == (1, 1))
        until(lambda: work(loaded) == (1, 0))
    until(lambda: is_idle(loaded))


def test_a_request_id_is_taken_once(loaded: Handle) -> None:
    with stream(loaded, chat(**ENDLESS, request_id="same")) as opened:
        next(opened.events())
        with pytest.raises(errors.BadRequest, match="in use"):
            ask(loaded, chat(request_id="same"))


def test_a_prompt_that_does_not_fit_is_refused(loaded: Handle) -> None:
    with pytest.raises(errors.ContextFull):
        ask(loaded, chat("sea " * 6000))
    with stream(loaded, chat("sea " * 6000)) as opened:
        # As a status, or as the stream's last event when a slow machine took long to count the tokens.
        body = opened.reply.read()
    assert json.loads(body.splitlines()[-1].removeprefix(b"data: "))["error"]["code"] == "context_full"


def test_bad_requests_name_the_field(loaded: Handle) -> None:
    with pytest.raises(errors.BadRequest, match=r"messages\[0\]\.content"):
        ask(loaded, {"messages": [{"role": "user", "content": 1}]})
    with pytest.raises(errors.BadRequest, match="draft_experts"):
        ask(loaded, chat(mode="s2-exact", draft_experts=999))


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/chat/completions", b"{", 400),
        ("POST", "/v1/chat/completions", b"[]", 400),
        ("POST", "/v1/chat/completions", b"", 400),
        ("POST", "/cancel", b"{}", 400),
        ("POST", "/watch", b"{}", 400),
        ("POST", "/watch", b'{"request_id": "one"}', 400),
        ("POST", "/watch", b'{"request_id": "one", "blocks": 1}', 400),
        ("GET", "/nothing", None, 404),
        ("GET", "/load", None, 405),
    ],
)
def test_errors_are_json(loaded: Handle, method: str, path: str, body: bytes | None, status: int) -> None:
    connection = UnixConnection(loaded.socket, 10)
    connection.request(method, path, body)
    reply = connection.getresponse()
    assert reply.status == status
    assert json.loads(reply.read())["error"]["message"]
    connection.close()


def test_a_body_without_end_is_refused(loaded: Handle) -> None:
    connection = UnixConnection(loaded.socket, 30)
    parts = (b"x" * (1 << 20) for _ in range(200))
    try:
        connection.request("POST", "/v1/chat/completions", parts, encode_chunked=True)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the engine need not read to the end
    else:
        assert connection.getresponse().status == 413
    connection.close()
    assert call(loaded.socket, "GET", "/handshake")


def test_no_html_or_silence_for_broken_http(loaded: Handle) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(10)
        raw.connect(str(loaded.socket))
        raw.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    assert call(loaded.socket, "GET", "/handshake")


def test_settings_are_the_defaults_of_later_requests(loaded: Handle) -> None:
    before = call(loaded.socket, "GET", "/settings")
    assert call(loaded.socket, "POST", "/settings", {"mode": "s2-exact", "draft_length": 3}) == {
        **before,
        "mode": "s2-exact",
        "draft_length": 3,
    }
    assert ask(loaded, chat(**SHORT))["s2"]["mode"] == "s2-exact"
    with pytest.raises(errors.BadRequest):
        call(loaded.socket, "POST", "/settings", {"mode": "warp"})
    assert call(loaded.socket, "POST", "/settings", before) == before


def test_a_lossy_mode_says_so_and_takes_its_cap(loaded: Handle) -> None:
    info = read_model_info(EMBEDDED_MODEL)
    used, whole = info.n_expert_used, info.n_expert
    ends = [ask(loaded, chat(**SHORT, mode="s2", cap=cap))["s2"] for cap in (used, whole)]
    assert ends == [{"mode": "s2", "exact": False, "finish": "max_tokens"}] * 2
    for body, hint in (({"cap": 0}, "whole number from 1"), ({"cap": whole + 1}, f"from {used} to {whole}")):
        with pytest.raises(errors.BadRequest) as caught:
            call(loaded.socket, "POST", "/settings", body)
        assert hint in caught.value.hint


def test_reads_are_switched_while_it_runs(loaded: Handle) -> None:
    before = call(loaded.socket, "GET", "/settings")
    assert (before["resident_only"], before["prefetch"]) == (True, True)
    changed = call(loaded.socket, "POST", "/settings", {"resident_only": False, "prefetch": False})
    assert changed == {**before, "resident_only": False, "prefetch": False}
    with pytest.raises(errors.BadRequest) as caught:
        call(loaded.socket, "POST", "/settings", {"prefetch": "yes"})
    assert "prefetch is not true or false" in caught.value.message
    assert call(loaded.socket, "POST", "/settings", before) == before


def test_telemetry_shows_the_running_request(loaded: Handle) -> None:
    with stream(loaded, None, "/telemetry") as watched:
        seen = watched.events()
        first = next(seen)
        assert (first["state"], first["clients"]) == ("ready", 1)
        assert first["model"]["is_moe"]
        assert {mode["name"] for mode in first["modes"]} >= {"ar", "s2-exact"}
        assert first["rss_bytes"] > read_model_info(EMBEDDED_MODEL).size_bytes // 4
        with stream(loaded, chat(**ENDLESS)) as opened:
            next(opened.events())
            live = next(shot for shot in seen if shot["running"] and shot["timings"]["predicted_n"] > 1)
            assert live["timings"]["predicted_per_second"] > 0
        assert next(shot for shot in seen if not shot["running"])["queued"] == 0


def test_the_model_of_others_is_not_taken_away(loaded: Handle) -> None:
    other = {"model": "/no/such/model.gguf"}
    with stream(loaded, None, "/telemetry") as watched:
        next(watched.events())
        with pytest.raises(errors.Busy):
            call(loaded.socket, "POST", "/load", other)
    until(lambda: call(loaded.socket, "GET", "/health")["status"] == "ok")
    with stream(loaded, chat(**ENDLESS)) as opened:
        next(opened.events())
        with pytest.raises(errors.Busy):
            call(loaded.socket, "POST", "/load", other)
        for same in (LOAD, {"model": str(EMBEDDED_MODEL)}):
            assert call(loaded.socket, "POST", "/load", same) == {"state": "ready"}


def test_without_a_model_requests_are_refused(engine: Handle) -> None:
    assert call(engine.socket, "GET", "/health")["status"] == "no model"
    assert call(engine.socket, "GET", "/v1/models")["data"] == []
    with pytest.raises(errors.EngineUnavailable, match="no model is loaded"):
        ask(engine, chat())


def test_a_load_that_fails_says_why_and_the_next_one_works(engine: Handle) -> None:
    call(engine.socket, "POST", "/load", {"model": "/no/such/model.gguf"})
    until(lambda: call(engine.socket, "GET", "/health")["status"] == "error")
    assert "/no/such/model.gguf" in snapshot(engine)["error"]
    with pytest.raises(errors.EngineUnavailable, match="no/such/model"):
        ask(engine, chat())
    call(engine.socket, "POST", "/load", {**LOAD, "n_ctx": 512})
    assert ask(engine, chat(**SHORT))["choices"]


def test_requests_sent_while_a_model_loads_wait_for_it(engine: Handle) -> None:
    call(engine.socket, "POST", "/load", {**LOAD, "n_ctx": 512})
    with stream(engine, chat(**SHORT)) as opened:
        assert opened.reply.status == 200
        *events, done = opened.events()
    assert (bool(text_of(events)), done) == (True, "[DONE]")


def test_a_request_behind_a_failing_load_is_refused(engine: Handle) -> None:
    call(engine.socket, "POST", "/load", {"model": "/no/such/model.gguf"})
    with pytest.raises(errors.EngineUnavailable, match="no model"):
        ask(engine, chat())


def test_a_crash_breaks_the_stream_and_nothing_else(engine: Handle) -> None:
    call(engine.socket, "POST", "/load", LOAD)
    assert engine.process is not None
    with stream(engine, chat(**ENDLESS)) as opened:
        events = opened.events()
        next(events)
        engine.process.kill()
        assert "[DONE]" not in list(events)
    death = engine.death()
    assert death is not None
    assert "SIGKILL" in death.cause


def test_an_engine_that_is_told_to_leave_ends_the_running_answer(engine: Handle) -> None:
    call(engine.socket, "POST", "/load", LOAD)
    with stream(engine, chat(**ENDLESS)) as opened:
        seen = opened.events()
        next(event for event in seen if text_of([event]))
        assert engine.process is not None
        engine.process.terminate()
        *_, end, done = seen
    assert (end["s2"]["finish"], done) == ("cancel", "[DONE]")
    assert engine.process.wait(10) == 0


def test_a_client_that_leaves_while_it_speaks_is_no_fault(engine: Handle) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(str(engine.socket))
        raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: e\r\ncontent-length: 1000\r\n\r\n{")
    assert call(engine.socket, "GET", "/handshake")
    assert "Traceback" not in engine.paths.log.read_text()


def test_no_text_of_a_chat_is_logged(loaded: Handle) -> None:
    ask(loaded, chat("xyzzy-secret", **SHORT))
    with pytest.raises(errors.S2Error):
        ask(loaded, chat("xyzzy-secret " * 3000))
    assert "xyzzy" not in loaded.paths.log.read_text()
