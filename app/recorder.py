"""Keeps the history away from the interface: one thread writes, and a failing disk is only a notice."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from app.history import History, HistoryError

T = TypeVar("T")
Notice = Callable[[str], None]


class Recorder:
    """Runs work on the history in order. Work that fails returns its default and is reported once.

    `notice` is called on the event loop's thread.
    """

    def __init__(self, path: Path, notice: Notice) -> None:
        self._path = path
        self._notice = notice
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._history: History | None = None
        self._failing = False
        self._closed = False
        self._partial: Future[None] | None = None

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        self._history, problem = await loop.run_in_executor(self._thread, _open, self._path)
        if problem:
            self._notice(problem)

    async def call(self, work: Callable[[History], T], default: T) -> T:
        """What `work` returns, or `default` when the history cannot do it."""
        if self._closed:
            return default
        loop = asyncio.get_running_loop()
        try:
            result = await loop.run_in_executor(self._thread, self._run, work)
        except (sqlite3.Error, OSError) as error:
            if not self._failing:
                self._notice(f"the chat is not being saved: {error} ({self._path})")
            self._failing = True
            return default
        if self._failing:
            self._notice("the chat is being saved again")
        self._failing = False
        return result

    def save_partial(self, message: int, content: str) -> None:
        """Saves a growing answer in the background; skipped while an earlier save is still busy."""
        if self._partial is None or self._partial.done():
            self._partial = self._thread.submit(
                lambda: self._run(lambda history: history.save_partial(message, content))
            )

    def _run(self, work: Callable[[History], T]) -> T:
        if self._history is None:
            raise sqlite3.ProgrammingError("the history is closed")
        return work(self._history)

    def close(self, last: Callable[[History], None] | None = None, wait_s: float = 2.0) -> None:
        """Does `last`, then closes. Waits `wait_s` seconds at most: a dead disk must not hold the exit."""
        if self._closed:
            return
        self._closed = True
        done = self._thread.submit(self._close, last)
        with contextlib.suppress(concurrent.futures.TimeoutError, sqlite3.Error, OSError):
            done.result(wait_s)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _close(self, last: Callable[[History], None] | None) -> None:
        history, self._history = self._history, None
        if history is None:
            return
        try:
            if last is not None:
                last(history)
        finally:
            history.close()


def _open(path: Path) -> tuple[History, str]:
    """The history at `path`, or one in memory and what is wrong.

    A damaged file is moved aside, never deleted.
    """
    try:
        try:
            return History(path), ""
        except sqlite3.OperationalError:
            raise  # full, read-only or locked: the file itself may be fine
        except sqlite3.DatabaseError as error:
            aside = _move_aside(path)
            return History(path), f"the history was damaged ({error}); it is kept as {aside}"
    except (sqlite3.Error, OSError, HistoryError) as error:
        reason = str(error) if str(path) in str(error) else f"{error} ({path})"
        return History(None), f"this chat will not be saved: {reason}"


def _move_aside(path: Path) -> Path:
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    path.rename(aside)
    for suffix in ("-wal", "-shm"):
        journal = path.with_name(path.name + suffix)
        if journal.exists():
            journal.rename(aside.with_name(aside.name + suffix))
    return aside
