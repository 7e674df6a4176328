"""Real engine processes in folders of their own, and ways to wait for what they do."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from engine.launcher import Handle, ensure_engine
from engine.paths import Paths
from engine.probe import call

MODEL = Path(__file__).parents[2] / "assets" / "smolmoe-32x8.gguf"

# One thread: threads of one pass wait for each other, which takes long on a machine with other work.
LOAD = {"model": str(MODEL), "n_ctx": 4096, "n_threads": 1}


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


@pytest.fixture
def paths() -> Iterator[Paths]:
    with tempfile.TemporaryDirectory(prefix="s2-") as root:
        found = make_paths(Path(root))
        yield found
        end_engine(found)


@pytest.fixture
def engine(paths: Paths) -> Iterator[Handle]:
    """An engine without a model that stays until the test is over."""
    handle = ensure_engine(paths, service=True)
    yield handle
    assert handle.process is not None
    handle.process.kill()
    handle.process.wait()


@pytest.fixture(scope="module")
def loaded() -> Iterator[Handle]:
    """An engine with the embedded model, shared by the tests of a file."""
    with tempfile.TemporaryDirectory(prefix="s2-") as root:
        handle = ensure_engine(make_paths(Path(root)), service=True)
        call(handle.socket, "POST", "/load", LOAD)
        until(lambda: call(handle.socket, "GET", "/health")["status"] != "loading")
        assert call(handle.socket, "GET", "/health") == {"status": "ok", "error": None}
        yield handle
        assert handle.process is not None
        handle.process.kill()
        handle.process.wait()
