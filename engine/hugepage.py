"""Memory to read files into as the expert store does."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager, suppress

HUGE_PAGE_BYTES = 2 << 20


@contextmanager
def huge_page() -> Iterator[memoryview]:
    """A buffer of HUGE_PAGE_BYTES that is one page where the kernel has such pages.

    A read past the page cache pins every page of where it goes: into pages of 4 KiB it takes twice as long.
    """
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # what is shared gets no such pages
    with mmap.mmap(-1, 2 * HUGE_PAGE_BYTES, flags=private) as memory:
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE_PAGE_BYTES
        with memoryview(memory) as whole, whole[start : start + HUGE_PAGE_BYTES] as page:
            yield page
