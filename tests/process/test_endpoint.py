"""The endpoint other programs use: a guarded port, fair turns, counts and figures."""

from __future__ import annotations

import http.client
import json

import pytest
from endpoint import ORIGIN, get, listening
from processes import until
from test_server import ENDLESS, Stream, ask, chat, stream, work

from engine import errors
from engine.launcher import Handle
from engine.probe import UnixConnection, call

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
