"""Decides when to start an engine again that died, and says what happened."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import EngineCrashed
from engine.launcher import Handle, ensure_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from engine.death import Death
    from engine.paths import Paths

_BACKOFF_S = (1.0, 2.0, 4.0)
_WINDOW_S = 600.0


@dataclass(frozen=True, slots=True)
class Crash:
    """How the engine ended, and what is to be done.

    `retry_after_s` is None when it died too often to be started again by itself. `careful` asks for a
    smaller context and plain decode after the start; the prompt is not to be sent again by itself then.
    """

    death: Death
    retry_after_s: float | None
    careful: bool

    @property
    def error(self) -> EngineCrashed:
        hint = (
            "" if self.retry_after_s is not None else "it died too often; your next message starts it again"
        )
        return EngineCrashed("\n".join((self.death.cause, *self.death.log_lines)), hint=hint)


class Supervisor:
    """Starts the engine and restarts it after 1, 2 and 4 s, at most three times in ten minutes."""

    def __init__(self, paths: Paths, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._paths = paths
        self._clock = clock
        self._crashes: list[float] = []
        self.handle: Handle | None = None

    def start(self) -> Handle:
        """The running engine or a new one; blocks like `ensure_engine` and raises what it raises."""
        self.handle = ensure_engine(self._paths)
        return self.handle

    def crashed(self) -> Crash | None:
        """What became of the engine after its connection broke: None when it still lives. Blocks up to 2 s.

        The caller waits `retry_after_s` seconds and calls `start` again.
        """
        death = self.handle.death() if self.handle else None
        return None if death is None else self.judge(death)

    def judge(self, death: Death) -> Crash:
        """Counts one death. An engine that left in good order may be started again at once."""
        if death.expected:
            return Crash(death, 0.0, careful=False)
        now = self._clock()
        self._crashes = [at for at in self._crashes if now - at < _WINDOW_S] + [now]
        count = len(self._crashes)
        delay = _BACKOFF_S[count - 1] if count <= len(_BACKOFF_S) else None
        return Crash(death, delay, careful=count >= 2)
