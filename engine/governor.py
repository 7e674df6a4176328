"""How much memory the experts of a loaded model take while it is loaded.

The budget says how much they may take. They take less while nobody asks anything, and while memory runs
short; they take it back when somebody does, and when there has been enough for a while.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from engine.budget import Budget
from engine.errors import BadRequest, EngineUnavailable
from engine.size import size
from engine.strain import Strain, pressure_of, read_strain, spare

if TYPE_CHECKING:
    from engine.model import ModelInfo
    from engine.plan import Plan
    from engine.store import Store

IDLE_S = 600.0
PATIENCE = 2  # looks that find pressure: one may be a program that is just starting
SHRINK_EVERY_S = 5.0  # averages over ten seconds show only then what the last step was worth
SHRINK_PART = 4
SOFT_FLOOR_PART = 2  # where programs are only slowed down, it may not be ours to help: keep this part
CALM_S = 60.0
LONGEST_CALM_S = 960.0
GROW_EVERY_S = 5.0
GROW_PART = 8


class Slots(Protocol):
    """Memory for experts, as a store has it."""

    @property
    def bytes_min(self) -> int: ...

    @property
    def bytes_all(self) -> int: ...

    def resize(self, n_bytes: int, /) -> int: ...

    def warm(self) -> None: ...


class MemoryGovernor:
    """Sets the size of `slots`. May be used from any thread.

    Every method that changes something returns a notice for the user, "" when there is nothing to say.
    `budget_bytes` of the whole process, 0 for no limit; `other_bytes` of it are not for experts. `idle_bytes`
    of slots stay while nobody asks anything.
    """

    def __init__(
        self,
        slots: Slots,
        *,
        budget_bytes: int,
        slot_bytes: int,
        other_bytes: int,
        idle_bytes: int,
        model_bytes: int,
        read: Callable[[], Strain] = read_strain,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots, self._read, self._clock = slots, read, clock
        self._other, self._model_bytes = other_bytes, model_bytes
        self._idle_bytes = max(slots.bytes_min, min(idle_bytes, slots.bytes_all))
        self._lock = threading.Lock()
        self._closed = False
        self._budget = budget_bytes
        self._wanted = self._bytes = slot_bytes
        self._before: Strain | None = None
        self._looked_at = self._used_at = clock()
        self._stepped_at = self._pressed_at = -math.inf
        self._calm_s = CALM_S
        self._seen = 0
        self._pressed = self._resting = False

    @classmethod
    def of(cls, store: Store, plan: Plan, info: ModelInfo, other_bytes: int) -> MemoryGovernor:
        """For a loaded model whose store has got its slots. `other_bytes`: measured, or a budget might be
        taken that the next load of the same model refuses."""
        return cls(
            store,
            budget_bytes=plan.budget_bytes,
            slot_bytes=store.stats().bytes,
            other_bytes=other_bytes,
            # Each layer's share of one token's experts: those most in use, so the first token comes soon.
            idle_bytes=store.bytes_all * info.n_expert_used // info.n_expert,
            model_bytes=info.size_bytes,
        )

    @property
    def budget_bytes(self) -> int:
        return self._budget

    @property
    def other_bytes(self) -> int:
        """What of the budget is not for experts."""
        return self._other

    @property
    def slot_bytes(self) -> int:
        """What the slots take now, or will as soon as the running pass lets go of them."""
        return self._bytes

    @property
    def spare_bytes(self) -> int | None:
        """What neither the experts nor anything else will want of the budget; None without a limit."""
        return max(0, self._budget - self._other - self._wanted) if self._budget else None

    def close(self) -> None:
        """The slots are about to go; nothing is done with them after this."""
        with self._lock:
            self._closed = True

    def wake(self) -> str:
        """A request begins."""
        with self._lock:
            self._used_at = self._clock()
            if self._closed or not self._resting:
                return ""
            self._resting = False
            return self._resize(self._fitting(), "somebody asks again")

    def tick(self, *, busy: bool) -> str:
        """Looks around, about once a second; `busy`: a request is being answered or waits."""
        with self._lock:
            if self._closed:
                return ""
            now = self._clock()
            seconds, self._looked_at = now - self._looked_at, now
            if busy:
                self._used_at = now
            strain, before = self._read(), self._before
            self._before = strain
            pressure = pressure_of(strain, before, seconds)
            self._seen = self._seen + 1 if pressure is not None else 0
            if pressure is not None:
                self._pressed_at = now
                return self._shrink(pressure.reason, hard=pressure.hard) if self._seen >= PATIENCE else ""
            if now - self._used_at >= IDLE_S:
                return self._rest()
            return self._grow(strain)

    def set_budget(self, budget: Budget) -> str:
        """Takes this budget from now on. Raises BadRequest when the model cannot run with so little."""
        with self._lock:
            if self._closed:
                raise EngineUnavailable("no model is loaded")
            count = budget.bytes_for(self._model_bytes)
            least = self._other + self._slots.bytes_min
            if count and count < least:
                raise BadRequest(
                    f"a budget of {size(count)} is too small: this model needs {size(least)}",
                    hint=f"{-(-least // (1 << 20))}M or more",
                )
            self._budget = count
            self._wanted = self._granted(count)
            self._pressed = self._resting = False
            self._used_at = self._clock()
            self._resize(self._wanted, "")
            words = f"{size(count)} for the engine" if count else "no limit"
            return f"budget: {words}; {self._share()}"

    def lend(self, n_bytes: int) -> None:
        """So many bytes more of the process go to something beside the experts; below 0 they come back.

        Raises BadRequest when experts, budget or machine leave no room.
        """
        with self._lock:
            if self._closed:
                return
            other = self._other + n_bytes
            if n_bytes > 0:
                self._check_room(n_bytes, other)
            self._other = other
            if self._budget:
                self._wanted = self._granted(self._budget)
                settled = not (self._pressed or self._resting)
                self._resize(self._wanted if settled else min(self._bytes, self._wanted), "")

    def _check_room(self, n_bytes: int, other: int) -> None:
        if self._budget and self._budget < other + self._slots.bytes_min:
            raise BadRequest(
                f"a budget of {size(self._budget)} has no room for {size(n_bytes)} more",
                hint=f"{-(-(other + self._slots.bytes_min) // (1 << 20))}M or more",
            )
        if not self._budget and (free := spare(self._read())) < n_bytes:
            raise BadRequest(f"{size(n_bytes)} more do not fit into the {size(free)} that may be taken")

    def _granted(self, budget: int) -> int:
        """Bytes of slots in a budget; without one, all that the machine can spare."""
        whole = self._slots.bytes_all
        if budget:
            return max(self._slots.bytes_min, min(whole, budget - self._other))
        return max(self._slots.bytes_min, min(whole, self._bytes + spare(self._read())))

    def _shrink(self, reason: str, *, hard: bool) -> str:
        now = self._clock()
        floor = self._slots.bytes_min if hard else self._wanted // SOFT_FLOOR_PART
        target = max(self._slots.bytes_min, floor, self._bytes - self._bytes // SHRINK_PART)
        if target >= self._bytes or (self._pressed and now - self._stepped_at < SHRINK_EVERY_S):
            return ""
        if not self._pressed and now - self._stepped_at < self._calm_s:  # what was taken back was not there
            self._calm_s = min(LONGEST_CALM_S, 2 * self._calm_s)
        self._pressed = True
        return self._resize(target, reason)

    def _grow(self, strain: Strain) -> str:
        now = self._clock()
        if self._resting or self._bytes >= self._wanted:
            return ""
        if now - self._pressed_at < self._calm_s or now - self._stepped_at < GROW_EVERY_S:
            return ""
        step = min(max(1, self._wanted // GROW_PART), spare(strain))
        if step < min(self._wanted - self._bytes, self._wanted // GROW_PART):
            return ""  # a small step would end in the next shortage
        self._pressed = False
        whole = self._bytes + step >= self._wanted
        notice = self._resize(min(self._wanted, self._bytes + step), "there is enough memory again")
        if whole:
            self._calm_s = CALM_S
        return notice if whole else ""

    def _rest(self) -> str:
        if self._resting or self._bytes <= self._idle_bytes:
            return ""
        self._resting = True
        return self._resize(self._idle_bytes, f"nobody asked anything for {IDLE_S / 60:.0f} minutes")

    def _fitting(self) -> int:
        """What was given back, as far as it is still free."""
        return max(self._bytes, min(self._wanted, self._bytes + spare(self._read())))

    def _resize(self, target: int, reason: str) -> str:
        before, self._bytes = self._bytes, target
        self._stepped_at = self._clock()
        self._slots.resize(target)
        if target > before:
            self._slots.warm()
        return f"{self._share()}: {reason}" if target != before else ""

    def _share(self) -> str:
        return f"experts take {size(self._bytes)} of {size(self._slots.bytes_all)}"
