"""A home for each test, and engines with the model that ships."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import end_engine, paths_in, until

from engine.launcher import ensure_engine
from engine.paths import EMBEDDED_MODEL, Paths
from engine.probe import call


@pytest.fixture
def home() -> Iterator[Path]:
    """Short, because a socket's path must be; its engine ends with the test."""
    # A chat that was closed in a hurry may be writing its last files while the folder goes.
    with tempfile.TemporaryDirectory(prefix="s2-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        end_engine(paths_in(Path(folder)))


@pytest.fixture
def paths(home: Path) -> Paths:
    """Nothing runs there yet."""
    return paths_in(home)


@pytest.fixture(scope="module")
def served() -> Iterator[Path]:
    """A home whose engine stays, with the model loaded, for all tests of a file."""
    with tempfile.TemporaryDirectory(prefix="s2-") as folder:
        paths = paths_in(Path(folder))
        handle = ensure_engine(paths, service=True)
        call(handle.socket, "POST", "/load", {"model": str(EMBEDDED_MODEL)})
        until(lambda: call(handle.socket, "GET", "/health")["status"] == "ok")
        yield Path(folder)
        end_engine(paths)


@pytest.fixture
def ready(served: Path, home: Path) -> Paths:
    """A history of its own beside the shared engine."""
    shared = paths_in(served)
    return Paths(runtime=shared.runtime, state=home / "state", data=home / "data")
