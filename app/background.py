"""Work that may hang, in threads that hold nothing up: not the interface, and not the way out."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_background(work: Callable[[], T]) -> asyncio.Future[T]:
    """What `work` returns or raises. Whoever stops waiting leaves the thread to itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed: the program is on its way out
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="background", daemon=True).start()
    return future
