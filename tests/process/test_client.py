"""The asynchronous client, against a real engine and against streams made to be awkward."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from processes import until

from engine import errors
from engine.client import EngineClient
from engine.launcher import Handle, ensure_engine
from engine.messages import ChatChunk, Handshake, Snapshot
from engine.paths import EMBEDDED_MODEL, Paths
from engine.probe import call

HI = [{"role": "user", "content": "Tell me about the sea."}]
GREEDY = {"ignore_eos": True, "temperature": 0}
ENDLESS = {**GREEDY, "max_tokens": 3000}


async def test_a_chat(loaded: Handle) -> None:
    async with EngineClient(loaded.socket) as client:
        assert await client.handshake() == Handshake.from_json(call(loaded.socket, "GET", "/handshake"))
        chunks = [chunk async for chunk in client.chat(HI, options={**GREEDY, "max_tokens": 9})]
    assert "".join(chunk.text for chunk in chunks)
    assert sum(len(chunk.tokens) for chunk in chunks) == 9
    assert [chunk.finish for chunk in chunks if chunk.finish] == ["max_tokens"]
    last = chunks[-1]
    assert last.timings is not None
    assert last.timings.predicted_n == 9
    assert (last.mode, last.exact) == ("auto", True)


async def test_a_raw_completion(loaded: Handle) -> None:
    async with EngineClient(loaded.socket) as client:
        chunks = [chunk async for chunk in client.complete("Once upon", options={"max_tokens": 5})]
    assert "".join(chunk.text for chunk in chunks)
    assert chunks[-1].finish in ("max_tokens", "eos")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800"])
async def test_what_json_cannot_say_is_a_bad_request(paths: Paths, value: float | str) -> None:
    async with EngineClient(paths.socket) as client:
        with pytest.raises(errors.BadRequest, match="JSON"):
            await anext(client.chat([{"role": "user", "content": "Hi"}], options={"temperature": value}))


async def test_cancel_and_leaving_stop_the_engine(loaded: Handle) -> None:
    async with EngineClient(loaded.socket) as client:
        answer = client.chat(HI, options=ENDLESS, request_id="mine")
        while not (await answer.__anext__()).text:
            pass
        assert await client.cancel("mine")
        assert [chunk.finish async for chunk in answer][-1] == "cancel"

        answer = client.chat(HI, options=ENDLESS, request_id="other")
        await answer.__anext__()
        await answer.aclose()
        async for shot in client.telemetry():
            if shot.running == 0:
                break
        assert not await client.cancel("other")


async def test_blocks_are_shown_while_somebody_asks_for_them(loaded: Handle) -> None:
    async with EngineClient(loaded.socket) as client:
        assert not await client.watch("other", True)
        asked = {**GREEDY, "max_tokens": 8, "mode": "ar", "return_blocks": True}
        chunks = [chunk async for chunk in client.chat(HI, options=asked)]
        blocks = [block for chunk in chunks if chunk.look for block in chunk.look.blocks]
        assert len(blocks) == 7
        assert "".join(chunk.text for chunk in chunks).endswith("".join(b.own[0] for b in blocks))
        assert any(chunk.look and chunk.look.experts for chunk in chunks)
        answer = client.chat(HI, options=ENDLESS, request_id="watched")
        seen: list[bool] = []
        async for chunk in answer:
            if chunk.timings is not None:
                seen.append(chunk.look is not None)
            if len(seen) in (5, 15):
                assert await client.watch("watched", len(seen) == 5)
            if len(seen) == 25:
                break
        await answer.aclose()
        assert not any(seen[:5])
        assert any(seen[5:16])
        assert not any(seen[17:])


async def test_telemetry_and_settings(loaded: Handle) -> None:
    async with EngineClient(loaded.socket) as client:
        before = await client.settings()
        assert (await client.settings(draft_length=2)).draft_length == 2
        async for shot in client.telemetry():
            assert shot.state == "ready"
            assert shot.settings.draft_length == 2
            assert shot.model is not None
            assert shot.model.path == str(EMBEDDED_MODEL)
            assert shot.plan is not None
            assert shot.plan.reasons
            break
        await client.settings(draft_length=before.draft_length)
        with pytest.raises(errors.BadRequest, match="mode"):
            await client.settings(mode="warp")


async def test_the_own_telemetry_stream_does_not_make_the_engine_busy(engine: Handle) -> None:
    async with EngineClient(engine.socket) as client, EngineClient(engine.socket) as other:
        shots = client.telemetry()
        await shots.__anext__()
        await client.load(EMBEDDED_MODEL, n_ctx=512, n_threads=1)
        async for shot in shots:
            if shot.state == "ready":
                break
        await client.load(EMBEDDED_MODEL, n_ctx=768, n_threads=1)
        with pytest.raises(errors.Busy):
            await other.load(EMBEDDED_MODEL, n_ctx=512, n_threads=1)
        async for shot in shots:
            if shot.state == "ready" and shot.model is not None and shot.model.n_ctx == 768:
                break
        await shots.aclose()


async def test_shutdown_ends_every_stream(engine: Handle) -> None:
    async with EngineClient(engine.socket) as client:
        shots = client.telemetry()
        await shots.__anext__()
        await client.shutdown()
        assert all([isinstance(shot, Snapshot) async for shot in shots])
    assert engine.process is not None
    assert engine.process.wait(10) == 0


async def test_no_engine_is_said(paths: Paths) -> None:
    async with EngineClient(paths.socket) as client:
        with pytest.raises(errors.EngineUnavailable, match="no engine is running"):
            await client.handshake()
        with pytest.raises(errors.EngineUnavailable, match="no engine is running"):
            await client.chat(HI).__anext__()


async def test_a_killed_engine_is_noticed(engine: Handle) -> None:
    async with EngineClient(engine.socket) as client:
        shots = client.telemetry()
        await shots.__anext__()
        assert engine.process is not None
        engine.process.kill()
        with pytest.raises(errors.EngineUnavailable, match="closed the connection"):
            async for _ in shots:
                pass


def test_an_engine_leaves_after_its_last_client(paths: Paths) -> None:
    handle = ensure_engine(paths, linger_s=0.5)

    async def attach() -> None:
        async with EngineClient(handle.socket) as client:
            async for _ in client.telemetry():
                break

    asyncio.run(attach())
    assert handle.process is not None
    until(lambda: handle.process is not None and handle.process.poll() == 0)


@asynccontextmanager
async def answering(socket: Path, body: bytes) -> AsyncIterator[EngineClient]:
    """A client of a server that answers every call with `body` and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + body
        )
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, socket)
    async with server, EngineClient(socket) as client:
        yield client


CHUNK = b'data: {"choices": [{"delta": {"content": "a"}}], "new": 1}\n\n'


async def test_comments_and_unknown_fields_are_ignored(tmp_path: Path) -> None:
    body = b": ping\n\n:\n\nevent: x\nid: 4\n" + CHUNK + b": ping\n\ndata: [DONE]\n\n"
    async with answering(tmp_path / "s", body) as client:
        assert [chunk async for chunk in client.chat(HI)] == [ChatChunk(text="a")]


async def test_an_error_event_is_raised_as_what_it_is(tmp_path: Path) -> None:
    error = b'data: {"error": {"code": "native_error", "message": "it broke", "hint": "mend it"}}\n\n'
    async with answering(tmp_path / "s", CHUNK + error) as client:
        answer = client.chat(HI)
        assert (await answer.__anext__()).text == "a"
        with pytest.raises(errors.NativeError) as caught:
            await answer.__anext__()
    assert caught.value.line() == "it broke (mend it)"


async def test_a_stream_that_ends_early_is_no_success(tmp_path: Path) -> None:
    async with answering(tmp_path / "s", CHUNK) as client:
        with pytest.raises(errors.EngineUnavailable):
            assert [chunk async for chunk in client.chat(HI)]
