"""How many threads decode: as many as really run, on a machine that others use too.

ggml's threads meet at a barrier after every node of the graph, a thousand times per token. When one of them
has to wait for a core, all wait, and a single busy program elsewhere makes two threads slower than one: on
two cores beside one busy loop 54 tokens/s against 164, beside two 0.6 against 77. So the engine watches how
long its threads stood ready without running and gives a thread up when that is more than a little; now and
then it tries to have it back. Bits do not depend on the number of threads.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

WINDOW_NS = 100_000_000  # long enough to tell a neighbour from a hiccup
IDLE_NS = 50_000_000  # a gap between passes this long belongs to no window
CROWDED = 0.15  # waiting time of all threads / time; alone on a machine it is 0.01 to 0.04
FIRST_RETRY_NS = 2_000_000_000
LAST_RETRY_NS = 60_000_000_000

# Turns a thread spins at a barrier before it sleeps. libgomp's own 300,000 is as fast on a quiet machine
# (205 against 215 tokens/s, two cores) and burns a neighbour's time for milliseconds.
BARRIER_SPINS = 3000


def run_delay_ns(tasks: Path = Path("/proc/self/task")) -> int | None:
    """Nanoseconds the threads of this process stood ready without running; None where nobody counts."""
    total = 0
    try:
        for task in tasks.iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that just ended
                total += int((task / "schedstat").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return total


class ThreadGovernor:
    """The number of threads for the next pass, at most `limit`; exactly `limit` when `fixed`."""

    def __init__(
        self,
        limit: int,
        *,
        fixed: bool = False,
        delay_ns: Callable[[], int | None] = run_delay_ns,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._limit, self._delay_ns, self._clock_ns = limit, delay_ns, clock_ns
        self._watching = limit > 1 and not fixed and delay_ns() is not None
        self._window_start = self._delay_start = self._last_pass = 0
        self._retry_ns, self._retry_at = FIRST_RETRY_NS, 0
        self.threads = limit

    def before_pass(self) -> None:
        if self._watching and (now := self._clock_ns()) - self._last_pass > IDLE_NS:
            self._open_window(now)

    def after_pass(self) -> bool:
        """Whether `threads` has changed."""
        if not self._watching:
            return False
        now = self._last_pass = self._clock_ns()
        if now - self._window_start < WINDOW_NS:
            return False
        waited = ((self._delay_ns() or 0) - self._delay_start) / (now - self._window_start)
        before = self.threads
        self._judge(waited, now)
        self._open_window(now)
        return self.threads != before

    def _judge(self, waited: float, now: int) -> None:
        if waited > CROWDED:
            if self.threads > 1:
                self.threads = max(1, self.threads - max(1, round(waited)))
                self._retry_at = now + self._retry_ns
                self._retry_ns = min(2 * self._retry_ns, LAST_RETRY_NS)
        elif self.threads < self._limit:
            if now >= self._retry_at:
                self.threads += 1
        elif now >= self._retry_at + self._retry_ns:
            self._retry_ns = FIRST_RETRY_NS  # it held: the neighbour is gone

    def _open_window(self, now: int) -> None:
        self._window_start, self._delay_start = now, self._delay_ns() or 0
