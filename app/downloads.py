"""The download that runs beside the chat, and what earlier ones left."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.background import in_background
from app.fetch import Fetch, leftovers
from app.hub import look_up
from engine.errors import Cancelled, S2Error
from engine.size import size

if TYPE_CHECKING:
    from pathlib import Path

    from app.fetch import Leftover

_EACH_S = 0.2
_END_S = 2.0


@dataclass(frozen=True, slots=True)
class Step:
    """How far the download of `name` has come: bytes of `what`."""

    name: str
    what: str = "asking the hub"
    done: int = 0
    whole: int = 0
    per_second: float = 0.0

    @property
    def words(self) -> str:
        if not self.whole:
            return self.what
        speed = f", {size(self.per_second)}/s" if self.per_second else ""
        return f"{self.what} {100 * self.done // self.whole}% of {size(self.whole)}{speed}"


class Downloads:
    """One at a time. `step` is None while none runs; `changed` is called when it has moved, and `notice` with
    the words for its end, which `said` keeps until the next. All calls come on the event loop."""

    def __init__(self, folder: Callable[[], Path], notice: Callable[[str], None]) -> None:
        self.step: Step | None = None
        self.said = ""
        self.changed: Callable[[], None] = lambda: None
        self._folder = folder
        self._notice = notice
        self._task: asyncio.Task[None] | None = None
        self._since, self._from, self._told = 0.0, 0, 0.0

    def start(self, name: str) -> bool:
        """False while another one runs."""
        if self.step is not None:
            return False
        self.step, self.said = Step(name), ""
        self._task = asyncio.create_task(self._run(name))
        return True

    def stop(self) -> None:
        """What arrived is kept."""
        if self._task is not None:
            self._task.cancel()

    async def left(self) -> list[Leftover]:
        """Unfinished downloads but the one that runs."""
        found = await in_background(lambda: leftovers(self._folder()))
        running = self.step.name.partition(":")[0] if self.step else None
        return [left for left in found if left.name.partition(":")[0] != running]

    async def _run(self, name: str) -> None:
        fetch, work = None, None
        try:
            offer = await in_background(lambda: look_up(name))
            self.step = Step(offer.name)
            fetch = Fetch(offer, self._folder(), self._report(offer.name))
            work = in_background(fetch.run)
            path = await asyncio.shield(work)
            self._end(f"{path.name} is here and verified: Ctrl+L, Enter chats with it")
        except Cancelled:
            pass
        except asyncio.CancelledError:
            self._end(f"The download of {name} was stopped; the list of models goes on with it")
        except (S2Error, OSError) as error:
            self._end(f"{name}: {error.line() if isinstance(error, S2Error) else error}")
        finally:
            if fetch is not None and work is not None:
                fetch.cancel()
                await asyncio.wait([work], timeout=_END_S)  # it holds the file until it has seen that
            self.step = self._task = None
            self.changed()

    def _end(self, words: str) -> None:
        self.said = words
        self._notice(words)

    def _report(self, name: str) -> Callable[[str, int, int], None]:
        loop = asyncio.get_running_loop()

        def report(what: str, done: int, whole: int) -> None:
            """In the thread of the download."""
            now, last = time.monotonic(), self.step
            if last is None or now - self._told < _EACH_S:
                return
            if last.what != what:
                self._since, self._from = now, done
            self._told = now
            seconds = now - self._since
            step = Step(name, what, done, whole, (done - self._from) / seconds if seconds > 1 else 0.0)
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._moved, step)

        return report

    def _moved(self, step: Step) -> None:
        if self.step is not None:
            self.step = step
            self.changed()
