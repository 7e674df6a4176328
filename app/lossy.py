"""How a mode is named wherever it is shown: marked where its text is not plain decode's, or may not be."""

from __future__ import annotations

from engine.request import is_lossy

EXACT, ROUNDED, LOSSY = "=exact", "≈", "≈lossy"


def sign(mode: str, *, exact: bool) -> str:
    """What the text of `mode` is worth here: plain decode's; rounded otherwise by kernels that differ by
    width, as on a GPU; or another one on purpose."""
    return EXACT if exact else LOSSY if is_lossy(mode) else ROUNDED


def mode_words(mode: str, *, exact: bool | None = None) -> str:
    """`mode`, marked where its text is not plain decode's on any machine, or on the one that says so."""
    marked = is_lossy(mode) or exact is False
    return f"{mode} {sign(mode, exact=False)}" if marked else mode
