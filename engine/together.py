"""Work that ends with something else: with the first of several, or when its time is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine

Result = TypeVar("Result")


async def until_one_ends(*works: Coroutine[Any, Any, None]) -> None:
    """Runs all until the first has ended, or the caller is cancelled; then cancels the others and waits.

    Raises what the first of them that failed has raised.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def within(seconds: float | None, work: Awaitable[Result]) -> Result:
    """What `work` returns or raises. Raises TimeoutError, with `work` cancelled, after so many `seconds`.

    In place of `asyncio.wait_for`, which before Python 3.12 swallows a cancel that comes in the turn in which
    `work` ends: whoever waits for the cancelled task to leave would then wait for ever.
    """
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait((task,), timeout=seconds)
        if not done:
            raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        elif not task.cancelled():
            task.exception()  # seen, also where the caller was cancelled at the moment it came
