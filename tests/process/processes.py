"""Ways to deal with real engine processes, and to wait for what they do."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from engine.paths import EMBEDDED_MODEL, Paths

# One thread: threads of one pass wait for each other, which takes long on a machine with other work.
LOAD = {"model": str(EMBEDDED_MODEL), "n_ctx": 4096, "n_threads": 1}


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Waits until `condition` holds; a test fails when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def is_gone(pid: int) -> bool:
    """No such process runs any more; one that waits for its parent to ask how it ended counts as gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def make_paths(root: Path) -> Paths:
    return Paths(runtime=root / "run", state=root / "state", data=root / "data")


def end_engine(paths: Paths) -> None:
    """Ends whichever engine holds the lock of `paths`."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(paths.lock.read_text())
        if pid != os.getpid() and not is_gone(pid):
            os.kill(pid, signal.SIGKILL)
            until(lambda: is_gone(pid))
