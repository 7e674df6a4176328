"""What the engine process knows about itself. Lives on the event loop; the decode thread posts changes."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from engine.errors import BadRequest, Busy, EngineUnavailable
from engine.events import Done, Timings
from engine.job import GenerateJob, Loaded, LoadJob, Mailbox, Question, Queued
from engine.messages import State
from engine.metrics import Totals
from engine.prompt import prompt_of
from engine.request import Speculation
from engine.seeds import MEASURED_HERE
from engine.watch import Watch
from engine.worker import Worker

if TYPE_CHECKING:
    from engine.budget import Budget
    from engine.call import Call
    from engine.session import Session
    from engine.wire import Load


log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_FORGET_AFTER_S = 600.0  # as the memory of experts that nobody uses
_MEMORY_NOTICES = 3


class EngineState:
    """Model, settings, requests and clients. Must be made inside the event loop."""

    def __init__(self, pid: int) -> None:
        self.instance = uuid.uuid4().hex
        self.pid = pid
        self.speculation = Speculation()
        self.loaded: Loaded | None = None
        self.loading: LoadJob | None = None
        self.progress = 0.0
        self.error: str | None = None
        self.timings: Timings | None = None
        self.totals = Totals()
        self.memory_notices: tuple[str, ...] = ()  # the latest of what its governor did
        self.jobs: dict[str, GenerateJob] = {}
        self.streams: dict[asyncio.Event, str] = {}  # wakes a telemetry stream → its client's name
        self.leaving = asyncio.Event()
        self.uses = 0  # grows with each request that counts as use; the lifetime watches it
        self.worker = Worker(self)
        self.worker.start()

    @property
    def state(self) -> State:
        if self.loading is not None:
            return "loading"
        if self.error is not None:
            return "error"
        return "empty" if self.loaded is None else "ready"

    @property
    def busy(self) -> bool:
        """Somebody uses this engine right now."""
        return bool(self.streams or self.jobs)

    def touch(self) -> None:
        """Something changed that telemetry shows."""
        for wake in self.streams:
            wake.set()

    def leave(self) -> None:
        """Ends all work and all streams; the process goes on to leave."""
        self.leaving.set()
        for job in list(self.jobs.values()):
            self._cancel(job)
        if self.loading is not None:
            self.loading.cancel.set()
        self.worker.stop()
        self.touch()

    # Requests

    def submit(self, call: Call, lane: str = "") -> GenerateJob:
        """Puts a request into the queue. `finish` must be called when its client is gone or served.

        `lane`: requests of one client have the same; lanes take turns.
        """
        if self.leaving.is_set():
            raise EngineUnavailable("the engine is leaving")
        if self.state == "error":
            raise EngineUnavailable(f"no model is loaded: {self.error}", hint="load another model")
        if self.state == "empty":
            raise EngineUnavailable("no model is loaded", hint="load one with POST /load")
        self._checked(call.speculation_over(self.speculation))
        name = call.request_id or uuid.uuid4().hex
        if name in self.jobs:
            raise BadRequest(f"request_id {name!r} is in use by a running request")
        job = self.jobs[name] = GenerateJob(name, call, Mailbox(), lane, watch=Watch(call.return_blocks))
        self.worker.submit(job)
        self.queue_moved()
        return job

    def queue_moved(self) -> None:
        """Tells those that wait how many come before them, where that has changed."""
        running = any(job.started for job in self.jobs.values())
        for ahead, job in enumerate(self.worker.waiting(), int(running)):
            if job.ahead != ahead and (ahead or job.ahead > 0):
                job.mailbox.put(Queued(ahead))
            job.ahead = ahead
        self.touch()

    async def count(self, call: Call) -> int:
        """Tokens of the prompt that `call` makes. Raises as a request for an answer would."""
        if self.state != "ready":
            raise EngineUnavailable("no model is loaded")
        return int(await self.ask(lambda session: len(prompt_of(session, call)[0])))

    async def ask(self, ask: Callable[[Session], Any]) -> Any:
        """What only the decode thread can say, soon, also while it writes an answer."""
        if self.state != "ready":
            raise EngineUnavailable("no model is loaded")
        question = Question(ask, asyncio.get_running_loop().create_future())
        self.worker.submit_question(question)
        return await question.answer

    def finish(self, job: GenerateJob, timings: Timings | None = None) -> None:
        """`timings`: the last it said, None where it said nothing."""
        job.cancel.set()
        self.worker.withdraw(job)
        self.jobs.pop(job.id, None)
        self.totals.add(timings)
        self.uses += 1
        self.queue_moved()

    def cancel(self, name: str) -> bool:
        job = self.jobs.get(name)
        if job is None:
            return False
        self._cancel(job)
        return True

    def watch(self, name: str, on: bool) -> bool:
        """Whether that request shows its blocks from now on; False when it is unknown or over."""
        job = self.jobs.get(name)
        if job is None:
            return False
        job.watch.on = on
        return True

    def _cancel(self, job: GenerateJob) -> None:
        job.cancel.set()
        if not job.started:  # the thread is busy with another one; this client need not wait for it
            self.worker.withdraw(job)
            job.mailbox.put(Done("cancel", "", Timings()), last=True)

    # Models

    def load(self, load: Load, client: str) -> bool:
        """Starts loading; False when that model is loaded or on its way already.

        Raises `Busy` when that would take the model away from somebody else.
        """
        if self.leaving.is_set():
            raise EngineUnavailable("the engine is leaving")
        self.uses += 1
        current = self.loading.load if self.loading else self.loaded.load if self.loaded else None
        if current == load:
            return False
        if current is not None and (self.jobs or self._others(client)):
            if self._serves(load, current):
                return False
            raise Busy(
                f"another program or request uses {current.path} with other settings; one model at a time",
                hint="close it or wait until it has finished; `s2chat stop` ends it",
            )
        self._start_loading(load)
        return True

    def load_again(self, load: Load) -> None:
        """What is loaded, from its files as they are now."""
        if self.loaded is not None and not self.leaving.is_set():
            self._start_loading(load, self.loaded.budget)

    def _start_loading(self, load: Load, budget: int | str | None = None) -> None:
        if self.loading is not None:
            self.loading.cancel.set()
        self.loading, self.loaded, self.error = LoadJob(load, budget), None, None
        self.progress, self.timings, self.memory_notices = 0.0, None, ()
        self.worker.submit_load(self.loading)
        self.touch()

    def _serves(self, load: Load, current: Load) -> bool:
        """What is loaded fulfils `load` as well, though it was asked for in other words."""
        given = dict(current.wishes)
        if self.loaded is not None:
            plan = self.loaded.plan
            given |= {
                "n_ctx": self.loaded.n_ctx,
                "n_threads": plan.n_threads,
                "cache_type": plan.cache_type,
            }
            given.setdefault("budget", plan.budget_bytes or "max")
        return current.path == load.path and given.items() >= load.wishes.items()

    def _others(self, client: str) -> bool:
        return any(not client or other != client for other in self.streams.values())

    def load_progress(self, job: LoadJob, progress: float) -> None:
        if job is self.loading:
            self.progress = progress
            self.touch()

    def load_done(self, job: LoadJob, loaded: Loaded) -> None:
        if job is self.loading:
            self.loading, self.loaded, self.progress = None, loaded, 1.0
            self.speculation = loaded.plan.speculation
            self.touch()

    def measured(self, draft_experts: int) -> None:
        """Drafts are best made with so many experts here; who has chosen another number keeps it."""
        if self.loaded is None:
            return
        plan = self.loaded.plan
        if self.speculation.draft_experts == plan.speculation.draft_experts:
            self.speculation = dataclasses.replace(self.speculation, draft_experts=draft_experts)
        plan = dataclasses.replace(
            plan,
            speculation=dataclasses.replace(plan.speculation, draft_experts=draft_experts),
            reasons={**plan.reasons, "draft_experts": MEASURED_HERE},
        )
        self.loaded = dataclasses.replace(self.loaded, plan=plan)
        self.touch()

    def load_failed(self, job: LoadJob, error: str) -> None:
        if job is self.loading:
            self.loading, self.error = None, error
            self.touch()

    # Memory

    @property
    def budget_bytes(self) -> int:
        """What the whole process may take now, 0 for no limit."""
        if self.loaded is None:
            return 0
        governor = self.loaded.governor
        return self.loaded.plan.budget_bytes if governor is None else governor.budget_bytes

    async def govern(self) -> None:
        """Looks after the memory of whatever model is loaded, until the engine leaves."""
        rested_s = 0.0
        while not self.leaving.is_set():
            await asyncio.sleep(_LOOK_EVERY_S)
            rested_s = 0.0 if self.jobs else rested_s + _LOOK_EVERY_S
            if rested_s >= _FORGET_AFTER_S and self.state == "ready":
                rested_s = 0.0
                self._forget_conversations()
            if self.loaded is not None and self.loaded.governor is not None:
                look = functools.partial(self.loaded.governor.tick, busy=bool(self.jobs))
                try:
                    self.memory_changed(await asyncio.to_thread(look))
                except Exception:
                    log.exception("looking after the memory failed")

    async def change_budget(self, budget: Budget) -> str:
        """Takes another budget at once, also while an answer is written; returns what it means in words."""
        loaded = self.loaded
        if loaded is None:
            raise EngineUnavailable("no model is loaded")
        if loaded.governor is None:
            raise BadRequest(
                f"{loaded.info.name} is held whole, its memory cannot be changed while it is loaded",
                hint="models of experts on the CPU can give memory back, others cannot",
            )
        notice = await asyncio.to_thread(loaded.governor.set_budget, budget)
        if self.loaded is loaded:
            self.loaded = dataclasses.replace(loaded, budget=budget.wire)
        self._forget_conversations()
        self.touch()
        return notice

    def _forget_conversations(self) -> None:
        """Lets go of those that are not in the cache: nobody has asked for long, or the budget changed."""
        question = Question(
            lambda session: session.forget_conversations(), asyncio.get_running_loop().create_future()
        )
        question.answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.worker.submit_question(question)

    def memory_changed(self, notice: str) -> None:
        if notice:
            self.memory_notices = (*self.memory_notices[1 - _MEMORY_NOTICES :], notice)
            self.touch()

    # Settings

    def change_settings(self, changes: Mapping[str, Any]) -> None:
        self.speculation = self._checked(dataclasses.replace(self.speculation, **changes))
        self.touch()

    def _checked(self, speculation: Speculation) -> Speculation:
        used = self.loaded.info.n_expert_used if self.loaded is not None else 0
        if used and speculation.draft_experts > used:
            raise BadRequest(
                f"draft_experts is {speculation.draft_experts}, the model uses {used} experts per token",
                hint=f"a number from 1 to {used}",
            )
        whole = self.loaded.info.n_expert if self.loaded is not None else 0
        if whole and speculation.cap > whole:
            raise BadRequest(
                f"cap is {speculation.cap}, the model has {whole} experts per layer",
                hint=f"a number from {used} to {whole}",
            )
        return speculation
