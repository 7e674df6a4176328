"""The one thread that owns the model: loads it and runs one request after the other."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

from engine.errors import Cancelled, EngineUnavailable, ModelError, S2Error
from engine.events import Done, Timings
from engine.job import GenerateJob, Loaded, LoadJob, Question, Started
from engine.memory import rss_bytes
from engine.prompt import request_of
from engine.request import MODES
from engine.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.governor import MemoryGovernor
    from engine.native import CancelFlag
    from engine.session import Session
    from engine.state import EngineState

log = logging.getLogger(__name__)

_PROGRESS_STEP_S = 0.1
_ROOM_MOST = 512 << 20  # bytes of conversations that are kept
_ROOM_SHARE = 8  # of the machine's free memory they get one part in so many
_ROOM_LEFT = 32 << 20  # bytes of the budget that stay free


class Worker(threading.Thread):
    """Takes requests as they have their turns. Native code, numpy and the model live in this thread only.

    Imports of the heavy parts stand in the methods: the process answers its socket before they are there.
    """

    def __init__(self, state: EngineState) -> None:
        super().__init__(name="decode", daemon=True)
        self._loop = asyncio.get_running_loop()
        self._state = state
        self._turns: Turns[GenerateJob, LoadJob | _Questions] = Turns()
        self._questions: queue.SimpleQueue[Question] = queue.SimpleQueue()
        self._session: Session | None = None
        self._flag: CancelFlag | None = None
        self._governor: MemoryGovernor | None = None
        self._fresh_bytes = 0  # the process before its first model
        self._disk = threading.Lock()  # held to measure it, in memory that no model must be charged for

    def submit(self, job: GenerateJob) -> None:
        self._turns.put(job, job.lane)

    def submit_load(self, job: LoadJob) -> None:
        """Requests that came before it find another model, or none: whoever may load makes sure of that."""
        self._turns.put_urgent(job)

    def submit_question(self, question: Question) -> None:
        """Answering one takes milliseconds, a request minutes: it does not wait for its turn."""
        self._questions.put(question)
        self._turns.put_urgent(_QUESTIONS)

    def withdraw(self, job: GenerateJob) -> bool:
        """Takes a request back that has not had its turn."""
        return self._turns.remove(job)

    def waiting(self) -> list[GenerateJob]:
        """Requests in the order of their turns."""
        return self._turns.waiting()

    def stop(self) -> None:
        """Lets the thread end after the job it is at, which its own `cancel` shortens."""
        self._turns.stop()

    @property
    def kept_bytes(self) -> int:
        """Conversations that made room for others and are kept. May be asked from any thread."""
        session = self._session
        return 0 if session is None else session.kept_bytes

    def run(self) -> None:
        while (job := self._turns.take()) is not None:
            if isinstance(job, LoadJob):
                self._load(job)
            elif isinstance(job, _Questions):
                self._answer_questions()
            else:
                self._serve(job)

    def _load(self, job: LoadJob) -> None:
        if job.cancel.is_set:
            return
        try:
            self._unload()
            self._load_model(job)
        except Cancelled:
            self._tell(self._state.load_failed, job, "loading was stopped")
        except S2Error as error:
            self._tell(self._state.load_failed, job, error.line())
        except Exception as error:
            log.exception("loading failed")
            self._tell(self._state.load_failed, job, f"loading failed: {error!r}")

    def _load_model(self, job: LoadJob) -> None:
        from engine.machine.inventory import remember_disk, this_machine
        from engine.measured import measured_file, read_measured
        from engine.model import read_model_info
        from engine.native import CancelFlag, llama
        from engine.paths import heat_cache
        from engine.plan import ASKED_FOR, Wishes, make_plan
        from engine.seeds import MEASURED_HERE
        from engine.session import Session

        info = read_model_info(job.load.path)
        device, _ = this_machine(info.path, gpu=bool(llama().llama_supports_gpu_offload()))
        found = measured_file(info, device)
        plan = make_plan(device, info, Wishes(**job.wishes), read_measured(found, info))
        flag = job.cancel.attach(CancelFlag())
        with self._disk:
            self._session = Session.load(
                job.load.path,
                plan,
                on_progress=self._progress_of(job),
                cancel=flag,
                heat=heat_cache(),
                growth=self._growth(),
            )
        session = self._session
        self._governor = session.governor
        session.keep_conversations(self._room)
        if plan.reasons["draft_experts"] not in (ASKED_FOR, MEASURED_HERE):
            session.calibrate(found)
        loaded = Loaded(
            job.load,
            session.info,
            session.plan,
            session.n_ctx,
            session.exact,
            tuple(session.notices),
            self._governor,
            session.dialogue.can_switch_thoughts,
            session.dialogue.can_set_effort,
            job.budget,
        )
        self._tell(self._state.load_done, job, loaded)
        threading.Thread(target=remember_disk, args=(info.path, self._disk), name="disk", daemon=True).start()

    def _growth(self) -> int:
        """Bytes the process still grows by; asked between two models. What earlier ones made it grow by
        counts, or a budget that one of them kept would be too small when it is loaded again.
        """
        from engine.need import GROWTH_BYTES

        self._fresh_bytes = self._fresh_bytes or rss_bytes()
        return max(0, GROWTH_BYTES - max(0, rss_bytes() - self._fresh_bytes))

    def _room(self) -> int:
        """Bytes for conversations that are not in the cache: a part of what machine and budget spare."""
        import psutil

        session = self._session
        assert session is not None
        limits = [_ROOM_MOST, psutil.virtual_memory().available // _ROOM_SHARE]
        if self._governor is not None:  # experts that rest come back: their slots are not free
            spare = self._governor.spare_bytes
            limits += [] if spare is None else [spare - _ROOM_LEFT]
        elif session.plan.budget_bytes:
            limits.append(session.plan.budget_bytes - rss_bytes() + session.kept_bytes - _ROOM_LEFT)
        return min(limits)

    def _progress_of(self, job: LoadJob) -> Callable[[float], None]:
        last = 0.0

        def report(progress: float) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _PROGRESS_STEP_S:
                last = now
                self._post(self._state.load_progress, job, progress)

        return report

    def _unload(self) -> None:
        self._governor = None
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _serve(self, job: GenerateJob) -> None:
        if job.cancel.is_set:
            job.mailbox.put(Done("cancel", "", Timings()), last=True)
            return
        job.started = True
        self._post(self._state.queue_moved)
        try:
            self._generate(job)
        except Cancelled:
            job.mailbox.put(Done("cancel", "", Timings()), last=True)
        except S2Error as error:
            self._load_again_if_outdated(error)  # before anybody can ask again
            job.mailbox.put(error, last=True)
        except Exception as error:
            log.exception("a request failed")
            job.mailbox.put(S2Error(f"the request failed inside the engine: {error!r}"), last=True)

    def _load_again_if_outdated(self, error: S2Error) -> None:
        """A changed file fails every request from now on; what it holds now may work, or says why."""
        store = None if self._session is None else self._session.store
        loaded = self._state.loaded
        if isinstance(error, ModelError) and store is not None and store.outdated and loaded is not None:
            self._tell(self._state.load_again, loaded.load.stamped())

    def _generate(self, job: GenerateJob) -> None:
        session = self._session
        if session is None:
            raise EngineUnavailable("no model is loaded", hint="the load before this request failed")

        from engine.loop import generate
        from engine.native import CancelFlag

        if self._governor is not None:
            self._post(self._state.memory_changed, self._governor.wake())
        request, opens = request_of(session, job.call, self._state.speculation)
        drafts = session.can_rewind and bool(MODES[request.speculation.mode].drafters)
        mode = MODES[request.speculation.mode if drafts else "ar"]
        exact = mode.keeps_text(exact_kernels=session.exact)
        started = Started(len(request.prompt), mode.name, opens, exact)
        self._flag = job.cancel.attach(CancelFlag())  # native code holds its address until the next request
        for number, event in enumerate(generate(session, request, self._flag, watch=job.watch)):
            if number == 0:  # only now is it certain that the request is not refused
                job.mailbox.put(started)
            job.mailbox.put(event, last=isinstance(event, Done))
            if not self._questions.empty():
                self._answer_questions()
        if session.calibration is not None and session.calibration.found is not None:
            self._post(self._state.measured, session.calibration.found)
            session.calibration = None
        session.save_heat()  # now, because an engine seldom gets to say goodbye

    def _answer_questions(self) -> None:
        while not self._questions.empty():
            question = self._questions.get()
            try:
                if self._session is None:
                    raise EngineUnavailable("no model is loaded")
                self._post(_answer, question, question.ask(self._session), None)
            except S2Error as error:
                self._post(_answer, question, None, error)
            except Exception as error:
                log.exception("a question failed")
                self._post(_answer, question, None, S2Error(f"it failed inside the engine: {error!r}"))

    def _post(self, change: Callable[..., None], *values: Any) -> None:
        """Applies a change to the state on the event loop, soon."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is leaving
            self._loop.call_soon_threadsafe(change, *values)

    def _tell(self, change: Callable[..., None], *values: Any) -> None:
        """Like `_post`, but waits for it: the next job must find the settings of the new model."""
        applied = threading.Event()

        def apply() -> None:
            change(*values)
            applied.set()

        self._post(apply)
        applied.wait(10)


class _Questions:
    """Wakes the thread to look for questions."""


_QUESTIONS = _Questions()


def _answer(question: Question, answer: Any, error: S2Error | None) -> None:
    if question.answer.done():  # nobody waits any more
        return
    if error is None:
        question.answer.set_result(answer)
    else:
        question.answer.set_exception(error)
