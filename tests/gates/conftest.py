"""Sessions on the embedded model, and prompts of a wanted length."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from decoding import PASSAGE, Loader

from engine.paths import EMBEDDED_MODEL
from engine.session import Session


def pytest_itemcollected(item: pytest.Item) -> None:
    """Gates fix the number of threads, and beside busy programs those wait for each other: a gate of seconds
    has taken seven minutes there, and passed."""
    item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def loader() -> Iterator[Loader]:
    """Opens sessions and keeps those of equal settings: loading is the slow part of a gate."""
    loader = Loader(EMBEDDED_MODEL)
    yield loader
    loader.close()


@pytest.fixture
def session(warm: Session) -> Session:
    """A session of two threads with an empty cache."""
    warm.rewind(0)
    return warm


@pytest.fixture
def warm(loader: Loader) -> Session:
    """The same with what earlier gates have left in the cache: a prompt of that text is not read again."""
    return loader.get(threads=2)


@pytest.fixture(scope="session")
def passage() -> str:
    """Some ten thousand tokens to fill a context with: sources of the engine as they once were, because what
    a gate counts hangs on the text."""
    return PASSAGE.read_text()
