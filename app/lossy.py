"""How a mode is named wherever it is shown: one whose text is not plain decode's is marked."""

from __future__ import annotations

from engine.request import is_lossy


def mode_words(mode: str) -> str:
    """`mode`, marked where its text is not plain decode's on any machine."""
    return f"{mode} ≈lossy" if is_lossy(mode) else mode
