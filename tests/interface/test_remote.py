"""Servers elsewhere: what answers is found out, spoken to in its own dialect, and believed in nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openaiserver import STANDARD, OpenAI, event, serving, words

from engine import errors
from engine.client import EngineClient
from engine.messages import ChatChunk
from engine.remote.address import parse_address
from engine.remote.plain import PlainClient
from engine.remote.probe import connect
from engine.transport import Garbled

HI = [{"role": "user", "content": "Hi"}]
KEY = "sk-secret-123"
LLAMA = STANDARD | {"top_k", "min_p", "repeat_penalty", "return_progress", "timings_per_token"}


async def joined(url: str, key: str = "", model: str = "") -> EngineClient:
    return await connect(parse_address(url, key), model)


async def answer(client: EngineClient, **options: Any) -> list[ChatChunk]:
    return [chunk async for chunk in client.chat(HI, options=options)]


def text(chunks: list[ChatChunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


async def failed(server: OpenAI, key: str = "") -> errors.S2Error:
    """What a chat at `server` fails with."""
    async with await joined(server.url, key) as client:
        with pytest.raises(errors.S2Error) as caught:
            await answer(client)
    return caught.value


# --- addresses and keys


@pytest.mark.parametrize(
    ("url", "root", "place"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1:8080"),
        (" https://host.example/v1/ ", "https://host.example", "host.example"),
        ("http://[::1]:9/v1", "http://[::1]:9", "[::1]:9"),
        ("https://host.example/a/b/v1/chat/completions", "https://host.example/a/b", "host.example"),
    ],
)
def test_an_address_is_read_with_or_without_v1(url: str, root: str, place: str) -> None:
    address = parse_address(url, KEY)
    assert (address.root, address.place) == (root, place)
    assert KEY not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        *("", "host:8080", "ftp://host", "http://", "http://h:port", "http://[::1", "http://h/?a=b"),
        *("http://h/a b", "http://user:hunter2@h"),
    ],
)
def test_what_is_no_address_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(errors.BadRequest) as caught:
        parse_address(url)
    assert caught.value.hint
    assert "hunter2" not in caught.value.line()


@pytest.mark.parametrize("key", ["a b", "a\nb", "ä", "x" * 5000])
def test_a_key_that_no_header_carries_is_refused_unseen(key: str) -> None:
    with pytest.raises(errors.BadRequest) as caught:
        parse_address("http://h", key)
    assert key not in caught.value.line()


# --- what answers


async def test_a_plain_server_gets_standard_fields_only() -> None:
    with serving(OpenAI("one", "two")) as server:
        async with await joined(server.url + "/v1", model="two") as client:
            assert (client.offer.kind, client.offer.models) == ("openai", ("one", "two"))
            chunks = await answer(
                client, temperature=0.5, top_k=3, mode="s2-exact", reasoning_format="none", max_tokens=7
            )
        assert text(chunks) == "Hello there."
        assert chunks[-1].finish == "eos"
        assert chunks[-1].timings is not None
        assert (chunks[-1].timings.predicted_n, chunks[-1].timings.context_n) == (2, 13)
        (body,) = server.chats
        assert set(body) <= STANDARD
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("two", 0.5, 7)
        assert all("authorization" not in headers for _, headers, _ in server.asked)


async def test_a_llama_server_gets_its_samplers_and_says_its_context_and_timings() -> None:
    server = OpenAI("llama", owner="llamacpp")
    server.props = {"default_generation_settings": {"n_ctx": 4096}, "model_path": "/x"}
    server.fields = LLAMA
    timings = {
        "prompt_n": 5,
        "prompt_ms": 10.0,
        "predicted_n": 3,
        "predicted_ms": 30.0,
        "cache_n": 2,
        "x": "y",
    }
    progress = {"total": 7, "cache": 2, "processed": 5, "time_ms": 4.5}
    server.answer = [
        event(prompt_progress=progress),
        event({"content": "Yes"}, timings=timings),
        event(finish="length", timings=timings),
        b"data: [DONE]\n\n",
    ]
    with serving(server):
        async with await joined(server.url) as client:
            assert (client.offer.kind, client.offer.n_ctx) == ("llama-server", 4096)
            chunks = await answer(client, top_k=3, mode="ar")
            shot = await anext(client.telemetry())
        assert server.chats[0]["top_k"] == 3
        assert "mode" not in server.chats[0]
    assert shot.model is not None
    assert (shot.model.name, shot.model.n_ctx) == ("llama", 4096)
    assert chunks[0].progress is not None
    assert chunks[0].progress.processed == 5
    last = chunks[-1]
    assert last.finish == "max_tokens"
    assert last.timings is not None
    assert (last.timings.predicted_per_second, last.timings.context_n) == (100.0, 10)


async def test_a_prefix_and_a_key_reach_every_call() -> None:
    with serving(OpenAI("one")) as server:
        server.prefix, server.key = "/deep/er", KEY
        async with await joined(f"{server.url}/deep/er/v1", KEY) as client:
            assert text(await answer(client)) == "Hello there."
        assert {headers["authorization"] for _, headers, _ in server.asked} == {f"Bearer {KEY}"}


async def test_a_field_that_has_another_name_there_is_learned() -> None:
    with serving(OpenAI("one")) as server:
        server.fields = (STANDARD - {"stream_options"}) | {"max_completion_tokens"}
        async with await joined(server.url) as client:
            assert text(await answer(client, max_tokens=3)) == "Hello there."
            await answer(client, max_tokens=3)
        assert ["stream_options" in body for body in server.chats] == [True, False, False]


async def test_thoughts_come_apart() -> None:
    with serving(OpenAI("one")) as server:
        server.answer = [event({"reasoning_content": "hm"}), *words("Yes")]
        async with await joined(server.url) as client:
            chunks = await answer(client)
    assert ("".join(chunk.reasoning for chunk in chunks), text(chunks)) == ("hm", "Yes")


async def test_over_ipv6() -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with serving(OpenAI("one"), host="::1") as server:
        async with await joined(server.url) as client:
            assert client.offer.place == server.url.removeprefix("http://")
            assert text(await answer(client)) == "Hello there."
        assert {headers["host"] for _, headers, _ in server.asked} == {"[::1]"}


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.bind(("::1", 0))
        return True
    return False


# --- what goes wrong


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, errors.Unauthorized, "wants a key"),
        (403, errors.Forbidden, "refuses this"),
        (404, errors.ModelError, "no such call or model"),
        (429, errors.Busy, "no more requests"),
        (500, errors.S2Error, "failed (500)"),
        (502, errors.EngineUnavailable, "not there for now"),
        (400, errors.BadRequest, "refuses the request"),
    ],
)
async def test_each_status_is_said_in_words(status: int, kind: type[errors.S2Error], said: str) -> None:
    with serving(OpenAI("one")) as server:
        server.status, server.headers = status, {"Retry-After": "7"}
        error = await failed(server)
    assert type(error) is kind
    assert said in error.message
    assert error.hint or status == 400
    assert error.line().isprintable()
    assert "7 s" in error.hint or status != 429


async def test_a_key_that_is_repeated_to_us_is_not_shown() -> None:
    with serving(OpenAI("one")) as server:
        server.status, server.content = 403, json.dumps({"error": f"no such key: {KEY}"}).encode()
        error = await failed(server, KEY)
    assert KEY not in error.line()
    assert "no such key: (key)" in error.message


async def test_a_redirect_is_not_followed_with_the_key() -> None:
    with serving(OpenAI("one")) as server, serving(OpenAI("one")) as thief:
        server.status, server.headers, server.content = 307, {"Location": f"{thief.url}/v1"}, b""
        error = await failed(server, KEY)
        assert thief.url in error.message
        assert not thief.asked


async def test_web_pages_and_nonsense_are_no_answers() -> None:
    with serving(OpenAI("one")) as server:
        server.content = b"<html>\x1b[31mlogin</html>"
        assert "a web page" in (await failed(server)).message
        server.content = b"[]"
        assert isinstance(await failed(server), Garbled)
        server.content = None
        for line in (b"data: {broken\n\n", b'data: {"choices": 7}\n\n', b'data: {"choices": [[]]}\n\n'):
            server.answer = [line]
            assert isinstance(await failed(server), Garbled)
        server.listing = b"<html></html>"
        with pytest.raises(errors.EngineUnavailable, match="a web page"):
            await joined(server.url)
        server.listing = None
        with pytest.raises(errors.EngineUnavailable, match="no OpenAI server"):
            await joined(server.url + "/elsewhere")


async def test_an_error_in_the_stream_is_raised() -> None:
    with serving(OpenAI("one")) as server:
        server.answer = [event({"content": "a"}), b'data: {"error": {"message": "out of\\u0007 luck"}}\n\n']
        error = await failed(server)
    assert "out of luck" in error.message


@pytest.mark.parametrize("cut", [True, False])
async def test_a_stream_that_breaks_or_just_ends_is_no_answer(cut: bool) -> None:
    with serving(OpenAI("one")) as server:
        server.answer, server.cut = [event({"content": "a"})], cut
        async with await joined(server.url) as client:
            chunks = client.chat(HI)
            assert (await anext(chunks)).text == "a"
            with pytest.raises(errors.EngineUnavailable, match="closed the connection"):
                await anext(chunks)
            with pytest.raises(errors.EngineUnavailable):  # and who watches is told as well
                _ = [shot async for shot in client.telemetry()]


async def test_only_done_is_missing() -> None:
    with serving(OpenAI("one")) as server:
        server.answer = [event({"content": "a"}), event(finish="stop")]
        async with await joined(server.url) as client:
            assert (await answer(client))[-1].finish == "eos"


async def test_a_stream_that_stalls_is_given_up() -> None:
    with serving(OpenAI("one")) as server:
        server.answer, server.stalls = [event({"content": "a"})], True
        async with await joined(server.url) as client:
            assert isinstance(client, PlainClient)
            client.next_wait_s = 0.3
            began = time.monotonic()
            with pytest.raises(errors.EngineUnavailable, match="says nothing any more"):
                await answer(client)
            assert time.monotonic() - began < 20
        assert server.gone.wait(20)


async def test_characters_cut_anywhere_are_put_together() -> None:
    said = "grüße 😀\u2028日本\x85 \u202etrap"
    with serving(OpenAI("one")) as server:
        whole = b"".join(words(said)).replace(b"\n", b"\r\n")
        server.answer = [whole[at : at + 1] for at in range(len(whole))]
        async with await joined(server.url) as client:
            assert text(await answer(client)) == said


async def test_halves_of_characters_become_marks_that_can_be_written() -> None:
    with serving(OpenAI("one")) as server:
        server.answer = [b'data: {"choices": [{"delta": {"content": "a\\ud83d"}}]}\n\n', *words()]
        async with await joined(server.url) as client:
            text(await answer(client)).encode()


@pytest.mark.parametrize("stop", ["aclose", "cancel"])
async def test_leaving_closes_the_connection_at_once(stop: str) -> None:
    with serving(OpenAI("one")) as server:
        server.answer, server.stalls = [event({"content": "a"})], True
        async with await joined(server.url) as client:
            chunks = client.chat(HI)
            await anext(chunks)
            began = time.monotonic()
            if stop == "aclose":
                await chunks.aclose()
            else:
                task = asyncio.ensure_future(anext(chunks))
                await asyncio.sleep(0.05)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert not await client.cancel("it")
            await asyncio.to_thread(server.gone.wait, 20)
            assert server.gone_at - began < 5  # a stall would be noticed after 60 s


async def test_nobody_there_is_said() -> None:
    with serving(OpenAI("one")) as server:
        url = server.url
    with pytest.raises(errors.EngineUnavailable, match="nothing answers") as caught:
        await joined(url)
    assert "port" in caught.value.hint
    with pytest.raises(errors.EngineUnavailable, match="no machine called"):
        await joined("http://nowhere.invalid")


async def test_a_certificate_is_believed_only_when_somebody_vouches_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = certificate(tmp_path)
    with serving(OpenAI("one"), pem) as server:
        with pytest.raises(errors.EngineUnavailable, match="certificate"):
            await joined(server.url, KEY)
        assert not server.asked
        with pytest.raises(errors.S2Error):
            await joined(server.url.replace("https", "http"))
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        async with await joined(server.url, KEY) as client:
            assert text(await answer(client)) == "Hello there."
    said = pytest.raises(errors.EngineUnavailable, match="does not speak https")
    with serving(OpenAI("one")) as plain, said:
        await joined(plain.url.replace("http", "https"))


def certificate(folder: Path) -> Path:
    """A new certificate for 127.0.0.1, its key in the same file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    pem, key = folder / "cert.pem", folder / "key.pem"
    make = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    make += ["-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make, "-keyout", key, "-out", pem], check=True, capture_output=True)
    pem.write_bytes(pem.read_bytes() + key.read_bytes())
    return pem


ODD: list[Callable[[OpenAI], None]] = [
    lambda s: setattr(s, "listing", b'{"data": [{"id": 7}, "x", {"id": "a\\u001b[31m"}]}'),
    lambda s: setattr(s, "listing", b'{"data": []}'),
]


@pytest.mark.parametrize("change", ODD)
async def test_a_server_without_a_name_for_its_model_wants_one(change: Callable[[OpenAI], None]) -> None:
    with serving(OpenAI()) as server:
        change(server)
        with pytest.raises(errors.ModelError, match="lists no model"):
            await joined(server.url)
        async with await joined(server.url, model="mine") as client:
            assert text(await answer(client)) == "Hello there."


async def test_figures_that_mean_something_else_are_left_out() -> None:
    with serving(OpenAI("one")) as server:
        server.answer = [
            event({"content": "a"}, timings={"predicted_n": "many"}, prompt_progress=[1]),
            event({"content": 7, "reasoning": ["x"]}, usage="none", timings={"predicted_ms": 1e300}),
            event(finish="stop"),
            b"data: [DONE]\n\n",
        ]
        async with await joined(server.url) as client:
            chunks = await answer(client)
    assert text(chunks) == "a"
    assert chunks[-1].timings is None


@pytest.mark.parametrize("shot", [b"{}", b'{"state": 5, "instance": 1}', b"[]", b'{"instance": {}, "state":'])
async def test_who_only_pretends_to_be_ours_is_seen_through(shot: bytes) -> None:
    with serving(OpenAI("one", owner="local")) as server:
        server.pages["/handshake"] = b'{"api": [1, 9], "build": "x", "instance": "y", "pid": 1}'
        server.pages["/telemetry"] = b"data: " + shot + b"\n\n"
        async with await joined(server.url) as client:
            assert client.offer.kind == "s2chat"
            with pytest.raises(Garbled):
                await anext(client.telemetry())
        server.pages["/handshake"] = b'{"api": [2, 0], "build": "x", "instance": "y", "pid": 1}'
        with pytest.raises(errors.EngineUnavailable, match="protocol 2"):
            await joined(server.url)


async def test_a_proxy_or_host_that_cannot_be_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "gopher://nowhere")
    with pytest.raises(errors.BadRequest, match="cannot be asked"):
        await joined("http://host.invalid")
    monkeypatch.delenv("HTTP_PROXY")
    with pytest.raises(errors.S2Error):
        await joined("http://ho`st.invalid")
