"""When an engine without users leaves: a rule over what it saw, and the loop that applies it."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.instance import Instance
    from engine.state import EngineState

_STEP_S = 0.25
_FIRST_USE_S = 10.0


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long an engine stays. `starter` is the process that started it, 0 when that does not matter."""

    service: bool = False
    linger_s: float = 3.0
    starter: int = 0

    def is_over(self, *, used: bool, idle_s: float, orphan: bool, reachable: bool) -> bool:
        """`idle_s` seconds have passed without a client or request; `used`: there was one before that."""
        if not reachable:  # its socket is gone: nobody can come any more
            return idle_s > self.linger_s
        if self.service:
            return False
        # Whoever starts an engine needs a moment until it attaches, unless it is dead already.
        return idle_s > (self.linger_s if used or orphan else max(_FIRST_USE_S, self.linger_s))

    @property
    def orphan(self) -> bool:
        return self.starter > 0 and os.getppid() != self.starter


async def watch(lifetime: Lifetime, state: EngineState, instance: Instance) -> None:
    """Makes the engine leave when its time is over."""
    uses, used, idle_since = state.uses, False, time.monotonic()
    while not state.leaving.is_set():
        if state.busy or state.uses != uses:
            uses, used, idle_since = state.uses, True, time.monotonic()
        idle_s = time.monotonic() - idle_since
        if lifetime.is_over(used=used, idle_s=idle_s, orphan=lifetime.orphan, reachable=instance.reachable):
            state.leave()
        await asyncio.sleep(_STEP_S)
