"""Work with a limit: what a caller that leaves does not hear is no loose end, and every cancel is heard."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.together import until_one_ends, within


async def broken(gate: asyncio.Event) -> AsyncIterator[bytes]:
    await gate.wait()
    raise ConnectionError("the other side is gone")
    yield b""


async def test_a_stream_that_breaks_while_its_reader_is_cancelled_leaves_no_loose_end() -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    gate = asyncio.Event()
    reader = asyncio.create_task(within(5, anext(broken(gate), None)))
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
        await within(5, anext(broken(gate), None))


async def test_a_stream_that_is_silent_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        await within(0.01, anext(broken(asyncio.Event()), None))


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancel_is_heard_in_whatever_turn_it_comes(turns: int) -> None:
    """Also in the one in which the work ends: a client's two streams break together, the one's end wakes the
    other, and a telemetry stream that went on would keep the engine for ever."""
    wake = asyncio.Event()

    async def stream() -> None:
        while True:
            await within(60, wake.wait())
            wake.clear()

    async def leave() -> None:
        wake.set()
        for _ in range(turns):
            await asyncio.sleep(0)

    both = asyncio.create_task(until_one_ends(stream(), leave()))
    done, _ = await asyncio.wait((both,), timeout=2)
    assert done
    await both
