"""The embedded model, loaded once for all tests that only read from it or decode a little."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from toys import load

from engine.paths import EMBEDDED_MODEL
from engine.session import Session


@pytest.fixture(scope="session")
def embedded() -> Iterator[Session]:
    with load(EMBEDDED_MODEL) as session:
        yield session
