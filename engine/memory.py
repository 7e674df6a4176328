"""How much memory this process takes, and giving back what it does not use."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def rss_bytes(statm: Path = Path("/proc/self/statm")) -> int:
    """Bytes resident now, pages of mapped files among them; 0 where unknown."""
    try:
        return int(statm.read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0


def give_back() -> None:
    """Returns to the system what malloc keeps of what was freed, in milliseconds.

    Once it has freed a large buffer it takes the next of that size from its heaps, and holds on to them.
    """
    with contextlib.suppress(AttributeError):  # a C library that has no such call
        ctypes.CDLL(None).malloc_trim(0)
