"""Waiting for conditions, homes of their own, and what a chat shows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from textual._compositor import CompositorUpdate
from textual.app import App
from textual.screen import Screen

from app.chat import ChatApp
from app.options import ChatOptions, Load
from engine.paths import EMBEDDED_MODEL, Paths

SECONDS = 60.0


def until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Waits until `condition` holds; a test fails when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.02)


async def soon(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """`until` for tests that share their event loop with the interface."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        await asyncio.sleep(0.02)


def showing(app: App[Any], kind: type[Screen[Any]]) -> bool:
    """A screen of that `kind` is open, and what is in it is there: it comes a moment after the screen."""
    return isinstance(app.screen, kind) and app.screen.is_mounted


def paths_in(home: Path) -> Paths:
    """The paths a program has whose S2CHAT_HOME is `home`."""
    return Paths(runtime=home / "run", state=home / "state", data=home / "data")


def engine_pid(paths: Paths) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(paths.lock.read_text())
    return None


def end_engine(paths: Paths) -> None:
    pid = engine_pid(paths)
    if pid is not None and pid != os.getpid():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def chat(
    paths: Paths, *, mode: str = "ar", model: Path = EMBEDDED_MODEL, n_ctx: int | None = None, **request: Any
) -> ChatApp:
    """A chat with the model that ships; likeliest tokens and short answers unless told otherwise."""
    fields = {"temperature": 0, "max_tokens": 24, **request}
    return ChatApp(paths, ChatOptions(Load(model, n_ctx=n_ctx), mode=mode, request=fields))


def shown(app: ChatApp) -> str:
    """The transcript's text, line by line."""
    lines = ("".join(segment.text for segment in line).rstrip() for line in app.transcript._lines)
    return "\n".join(lines)


def status(app: ChatApp) -> str:
    return app.status.text


def hint(app: ChatApp) -> str:
    """What the status line says for a moment, uncut."""
    return app.status.hint


def rows(paths: Paths, query: str) -> list[Any]:
    """What another process finds in the history."""
    with contextlib.closing(sqlite3.connect(paths.history)) as database:
        return database.execute(query).fetchall()


class Glass:
    """What a terminal shows that gets every update of `app` from now on, for text of narrow characters.

    The compositor's own idea of the screen is always right; rows that were never sent anew are not in it.
    """

    _MOVE = re.compile(r"\x1b\[(\d+);(\d+)H")
    _OTHER = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\n")

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._cells: dict[tuple[int, int], str] = {}
        display = app._display

        def watched(screen: Any, update: Any) -> None:
            if isinstance(update, CompositorUpdate):
                self._take(update.render_segments(app.console))
            display(screen, update)

        app._display = watched  # type: ignore[method-assign]
        app.screen.refresh(layout=True)

    def _take(self, sequence: str) -> None:
        _, *parts = self._MOVE.split(sequence)
        for row, column, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
            for x, cell in enumerate(self._OTHER.sub("", text), int(column)):
                self._cells[int(row), x] = cell

    @property
    def text(self) -> str:
        width, height = self._app.size
        lines = (
            "".join(self._cells.get((y, x), "?") for x in range(1, width + 1)) for y in range(1, height + 1)
        )
        return "\n".join(lines)
