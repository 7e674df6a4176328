"""Looks at the machine for a panel, each in a thread: one that hangs makes figures old, nothing else."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from app.background import in_background

if TYPE_CHECKING:
    from pathlib import Path

    from engine.machine.live import Live
    from engine.machine.reading import Reading

_PATIENCE_S = 1.0


class Lookout:
    def __init__(self, live: Live) -> None:
        self._live = live
        self._work: asyncio.Future[dict[str, Reading]] | None = None
        self._found: dict[str, Reading] = {}
        self._at = time.monotonic()

    async def look(self, pid: int | None, place: Path | None) -> dict[str, Reading]:
        """What is found within a second; else what was found last, marked with its age and the reason."""
        if self._work is None:
            self._work = in_background(partial(self._live.look, pid, place))
        await asyncio.wait({self._work}, timeout=_PATIENCE_S)
        if not self._work.done():
            return self._old("a file of the kernel does not answer")
        work, self._work = self._work, None
        if (error := work.exception()) is not None:
            return self._old(f"unexpected: {error!r}"[:200])
        self._found, self._at = work.result(), time.monotonic()
        return self._found

    def _old(self, reason: str) -> dict[str, Reading]:
        words = f"{time.monotonic() - self._at:.0f} s old: {reason}"
        return {name: replace(reading, error=words) for name, reading in self._found.items()}

    def close(self) -> None:
        """Ends the helpers, once no look uses them."""
        if self._work is None:
            in_background(self._live.close)
        else:
            self._work.add_done_callback(lambda _: in_background(self._live.close))
