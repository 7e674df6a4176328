"""Real engine processes in folders of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from endpoint import ORIGIN, TOOL_TEMPLATE, listening
from processes import LOAD, end_engine, make_paths, until
from toys import write_llama

from engine.launcher import Handle, ensure_engine
from engine.paths import Paths
from engine.probe import call


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


@pytest.fixture(scope="module")
def toy() -> Iterator[Handle]:
    """An engine with a tiny model of random weights whose template has tools."""
    with tempfile.TemporaryDirectory(prefix="s2-") as root:
        model = write_llama(Path(root) / "toy.gguf", template=TOOL_TEMPLATE)
        handle = ensure_engine(make_paths(Path(root)), service=True)
        call(handle.socket, "POST", "/load", {"model": str(model), "n_ctx": 1024, "n_threads": 1})
        until(lambda: call(handle.socket, "GET", "/health")["status"] == "ok", 120)
        yield handle
        assert handle.process is not None
        handle.process.kill()
        handle.process.wait()


@pytest.fixture(scope="module")
def port(loaded: Handle) -> Iterator[tuple[int, str]]:
    with listening(loaded, origins=[ORIGIN]) as found:
        yield found
