"""Work that is done at the same time and ends together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Coroutine


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
