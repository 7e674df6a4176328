"""Pieces of a stream: what a reader that leaves does not hear is no loose end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.transport import _next


async def broken(gate: asyncio.Event) -> AsyncIterator[bytes]:
    await gate.wait()
    raise ConnectionError("the other side is gone")
    yield b""


async def test_a_stream_that_breaks_while_its_reader_is_cancelled_leaves_no_loose_end() -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    gate = asyncio.Event()
    reader = asyncio.create_task(_next(broken(gate), 5))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.sleep(0)  # the stream is told, and breaks in the turn in which its reader is cancelled
    reader.cancel()
    with pytest.raises((asyncio.CancelledError, ConnectionError)):
        await reader
    await asyncio.sleep(0)
    gc.collect()
    assert said == []


async def test_a_stream_that_breaks_says_so() -> None:
    gate = asyncio.Event()
    gate.set()
    with pytest.raises(ConnectionError):
        await _next(broken(gate), 5)


async def test_a_stream_that_is_silent_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        await _next(broken(asyncio.Event()), 0.01)
