"""Who cancels or leaves frees the engine within a second: in the prompt, in the queue, in the answer."""

from __future__ import annotations

import time
import uuid
from contextlib import aclosing
from typing import Any

import pytest

from engine.client import EngineClient
from engine.launcher import Handle
from engine.messages import Progress
from engine.together import within

BOUND_S = 1.0
#: The best of so many: other work on the machine may hold up one, an engine that does not stop all.
TRIES = 4
ENDLESS: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True, "temperature": 0}


def prompt(words: int) -> list[dict[str, str]]:
    """One that no earlier request has left in the cache, not even its beginning."""
    return [{"role": "user", "content": f"{uuid.uuid4().hex} " + "sea and sand " * (words // 3)}]


class Asked:
    """A request that is on its way; its stream is closed at the end."""

    def __init__(self, client: EngineClient, words: int) -> None:
        self._client, self._name = client, uuid.uuid4().hex
        self.chunks = client.chat(prompt(words), options=ENDLESS, request_id=self._name)

    async def __aenter__(self) -> Asked:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.chunks.aclose()

    async def answering(self) -> float:
        """Waits until it is in the midst of its answer; seconds that the rest of it would take."""
        while (timings := (await anext(self.chunks)).timings) is None or timings.predicted_n < 8:
            pass
        return (ENDLESS["max_tokens"] - timings.predicted_n) / timings.predicted_per_second

    async def end(self, way: str) -> None:
        if way == "cancel":
            assert await self._client.cancel(self._name)
        else:
            await self.chunks.aclose()


async def served(handle: Handle) -> None:
    """Another client's short request, from its question to its answer."""
    async with EngineClient(handle.socket) as other:
        options = {"max_tokens": 1, "temperature": 0}
        assert [chunk async for chunk in other.chat([{"role": "user", "content": "Hi"}], options=options)]


async def in_prompt(handle: Handle, way: str) -> tuple[float, float]:
    """Seconds until the next is served, and those that the rest of the work would have taken."""
    async with EngineClient(handle.socket) as client, Asked(client, 2800) as asked:
        seen: list[Progress] = []
        while len(seen) < 3:
            chunk = await anext(asked.chunks)
            assert not chunk.text, "the whole prompt was read before anybody could cancel"
            seen += [chunk.progress] if chunk.progress is not None else []
        first, last = seen[0], seen[-1]
        speed = (last.processed - first.processed) / (last.time_ms - first.time_ms)
        began = time.monotonic()
        await asked.end(way)
        await served(handle)
        return time.monotonic() - began, (last.total - last.processed) / speed / 1e3


async def in_answer(handle: Handle, way: str) -> tuple[float, float]:
    async with EngineClient(handle.socket) as client, Asked(client, 3) as asked:
        rest = await asked.answering()
        began = time.monotonic()
        await asked.end(way)
        await served(handle)
        return time.monotonic() - began, rest


async def in_queue(handle: Handle, way: str) -> tuple[float, float]:
    """It is the queue that is to be free; who was first goes on."""
    async with (
        EngineClient(handle.socket) as client,
        EngineClient(handle.socket) as other,
        Asked(client, 3) as first,
        Asked(other, 3) as second,
    ):
        rest = await first.answering()
        while (await anext(second.chunks)).ahead is None:
            pass
        began = time.monotonic()
        await second.end(way)
        async with aclosing(other.telemetry()) as shots:
            while (shot := await anext(shots)).queued:
                pass
        took = time.monotonic() - began
        assert shot.running == 1
        assert (await anext(first.chunks)).finish is None
        return took, rest


@pytest.mark.parametrize("way", ["cancel", "leave"])
@pytest.mark.parametrize("where", [in_prompt, in_answer, in_queue])
async def test_it_is_free_within_a_second(loaded: Handle, where: Any, way: str) -> None:
    found = []
    for _ in range(TRIES):
        took, rest = await where(loaded, way)
        found.append((took, rest))
        if took < BOUND_S:
            break
    took, rest = min(found)
    assert took < min(BOUND_S, rest / 2), f"seconds until it was free, and of the rest of the work: {found}"
    await within(60, served(loaded))
