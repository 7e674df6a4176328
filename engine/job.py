"""The work of the decode thread, and the mailbox that carries its events to the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.errors import S2Error
from engine.events import Event
from engine.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.call import Call
    from engine.governor import MemoryGovernor
    from engine.model import ModelInfo
    from engine.native import CancelFlag
    from engine.plan import Plan
    from engine.session import Session
    from engine.wire import Load


class Cancel:
    """A wish to stop that can be uttered before the native library, and so its flag, is there."""

    def __init__(self) -> None:
        self.is_set = False
        self._flag: CancelFlag | None = None

    def set(self) -> None:
        self.is_set = True
        if self._flag is not None:
            self._flag.set()

    def attach(self, flag: CancelFlag) -> CancelFlag:
        """From now on `flag` is set as well. Either thread may come first: each writes, then reads."""
        self._flag = flag
        if self.is_set:
            flag.set()
        return flag


@dataclass(frozen=True, slots=True)
class Started:
    """The decode thread has taken up the request. `opens`: the tag of thoughts its prompt ends with. `exact`:
    the text is going to be plain decode's."""

    prompt_tokens: int
    mode: str
    opens: str = ""
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits; `ahead` others come before it, the one that is being answered included."""

    ahead: int


Item: TypeAlias = Queued | Started | Event | S2Error


class Mailbox:
    """Items from the decode thread to one coroutine; unbounded, since text never drops.

    `put` is cheap: it wakes the event loop only when the coroutine waits for an item, and for the last one.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._waiting = False
        self._closed = False
        self._sleeper: asyncio.Future[None] | None = None

    def put(self, item: Item, *, last: bool = False) -> None:
        if self._closed:
            return
        self._items.append(item)
        self._closed = last
        if last or self._waiting:
            self._waiting = False
            with contextlib.suppress(RuntimeError):  # the event loop is gone: nobody is left to tell
                self._loop.call_soon_threadsafe(self._wake)

    async def get(self, timeout_s: float) -> list[Item]:
        """Everything put since the last call, as soon as there is something; nothing after the time."""
        self._waiting = True  # before looking, so that an item put in between wakes us
        if not self._items:
            await self._sleep(timeout_s)
        self._waiting = False
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items

    async def pause(self, seconds: float) -> None:
        """Lets items gather for a while; the last item ends the pause."""
        if not self._closed:
            await self._sleep(seconds)

    async def _sleep(self, seconds: float) -> None:
        self._sleeper = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._sleeper
        finally:
            timer.cancel()
            self._sleeper = None

    def _wake(self) -> None:
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)


@dataclass(eq=False, slots=True)
class GenerateJob:
    """One request on its way through the queue and the decode thread. `lane`: whose request it is."""

    id: str
    call: Call
    mailbox: Mailbox
    lane: str = ""
    cancel: Cancel = field(default_factory=Cancel)
    watch: Watch = field(default_factory=Watch)
    started: bool = False
    ahead: int = -1  # what its client was told last


@dataclass(eq=False, slots=True)
class LoadJob:
    """`budget`: one that was set since `load` was asked for, as it travels in requests, and stands."""

    load: Load
    budget: int | str | None = None
    cancel: Cancel = field(default_factory=Cancel)

    @property
    def wishes(self) -> dict[str, Any]:
        return {**self.load.wishes, **({} if self.budget is None else {"budget": self.budget})}


@dataclass(eq=False, slots=True)
class Question:
    """Something only the decode thread can say: between two passes, where an answer is being written."""

    ask: Callable[[Session], Any]
    answer: asyncio.Future[Any]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The model that is loaded, and how. `n_ctx` is what the native context really has.

    `exact`: on this backend the exact modes keep their promise. `governor`: of the memory of its experts,
    where they are read as they are needed. `can_switch_thoughts`: requests may say whether the model thinks,
    `can_set_effort`: how much. `budget` as in a LoadJob.
    """

    load: Load
    info: ModelInfo
    plan: Plan
    n_ctx: int
    exact: bool
    notices: tuple[str, ...]
    governor: MemoryGovernor | None = None
    can_switch_thoughts: bool = False
    can_set_effort: bool = False
    budget: int | str | None = None


Job: TypeAlias = GenerateJob | LoadJob
