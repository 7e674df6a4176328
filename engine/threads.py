"""How many threads decode: as many as really run, on a machine that others use too.

ggml's threads meet at a barrier after every node of the graph, a thousand times per token. When one of them
has to wait for a core, all wait, and a single busy program elsewhere makes two threads slower than one: on
two cores beside one busy loop 54 tokens/s against 164, beside two 0.6 against 77. So the engine watches how
long its threads stood ready without running and gives a thread up when that is more than a little for more
than a moment; it takes the thread back when a core has nothing to do. Bits do not depend on the number of
threads.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

WINDOW_NS = 100_000_000  # long enough to tell a neighbour from a hiccup
IDLE_NS = 50_000_000  # a gap between passes this long belongs to no window
CROWDED = 0.15  # waiting time of all threads / time; alone on a machine it is 0.01 to 0.04
PATIENCE = 2  # windows: a program that starts, or draws a screen, is over before
SPARE = 0.8  # of a core idle: room for one more thread
IN_VAIN_NS = 1_000_000_000  # a thread lost again this soon had better not been taken back
FIRST_RETRY_NS = 200_000_000
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


def idle_ns(stat: Path = Path("/proc/stat")) -> int | None:
    """Nanoseconds the cores this process may use stood idle since boot; None where nobody counts."""
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    try:
        rows = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
        ticks = sum(int(row[4]) for row in rows if row[0] in ours)
    except (OSError, IndexError, ValueError):
        return None
    return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


class ThreadGovernor:
    """The number of threads for the next pass, at most `limit`; exactly `limit` when `fixed`.

    Each thread that was taken back in vain doubles the wait for the next: a core may look idle and not be
    ours to use, as under a CPU quota.
    """

    def __init__(
        self,
        limit: int,
        *,
        fixed: bool = False,
        delay_ns: Callable[[], int | None] = run_delay_ns,
        idle_ns: Callable[[], int | None] = idle_ns,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._limit, self._delay_ns, self._idle_ns, self._clock_ns = limit, delay_ns, idle_ns, clock_ns
        self._watching = limit > 1 and not fixed and delay_ns() is not None and idle_ns() is not None
        self._window_start = self._delay_start = self._idle_start = self._last_pass = 0
        self._crowded = 0  # windows in a row
        self._retry_ns, self._given_at, self._taken_at = FIRST_RETRY_NS, 0, -IN_VAIN_NS
        self.threads = limit

    def before_pass(self) -> None:
        if self._watching and (now := self._clock_ns()) - self._last_pass > IDLE_NS:
            self._crowded = 0
            self._open_window(now)

    def after_pass(self) -> bool:
        """Whether `threads` has changed."""
        if not self._watching:
            return False
        now = self._last_pass = self._clock_ns()
        if now - self._window_start < WINDOW_NS:
            return False
        before = self.threads
        self._judge(now)
        self._open_window(now)
        return self.threads != before

    def _judge(self, now: int) -> None:
        """One window: waiting is looked at while there is a thread to give, idleness while one is missing."""
        window = now - self._window_start
        waited = ((self._delay_ns() or 0) - self._delay_start) / window
        self._crowded = self._crowded + 1 if waited > CROWDED else 0
        if self._crowded >= PATIENCE and self.threads > 1:
            self._give_up(max(1, round(waited)), now)
        elif self._crowded == 0 and self._may_take(now) and self._idle_share(window) >= SPARE:
            self.threads += 1
            self._taken_at = now

    def _may_take(self, now: int) -> bool:
        return self.threads < self._limit and now >= self._given_at + self._retry_ns

    def _idle_share(self, window: int) -> float:
        return ((self._idle_ns() or 0) - self._idle_start) / window

    def _give_up(self, threads: int, now: int) -> None:
        in_vain = now - self._taken_at < IN_VAIN_NS
        self._retry_ns = min(2 * self._retry_ns, LAST_RETRY_NS) if in_vain else FIRST_RETRY_NS
        self.threads = max(1, self.threads - threads)
        self._given_at, self._crowded = now, 0

    def _open_window(self, now: int) -> None:
        self._window_start, self._delay_start = now, self._delay_ns() or 0
        if self.threads < self._limit:
            self._idle_start = self._idle_ns() or 0
