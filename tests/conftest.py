"""The embedded model, loaded once for all tests that only read from it or decode a little."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from toys import load

from engine.paths import EMBEDDED_MODEL
from engine.session import Session

# A shell has what it starts in the background ignore interrupts, and so would all that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def embedded() -> Iterator[Session]:
    with load(EMBEDDED_MODEL) as session:
        yield session
