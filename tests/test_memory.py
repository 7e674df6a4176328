"""What the process holds, and that what was freed can go back to the system."""

from __future__ import annotations

import platform

import pytest

from engine.memory import give_back, rss_bytes

_BLOCK = 100_000  # bytes: smaller than what malloc maps by itself


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another malloc keeps other things")
def test_freed_memory_goes_back() -> None:
    blocks = [bytearray(b"x" * _BLOCK) for _ in range(400)]
    last = bytearray(b"x" * _BLOCK)  # what is free below it stays in the heap
    del blocks
    before = rss_bytes()
    give_back()
    assert before - rss_bytes() > 300 * _BLOCK
    assert len(last) == _BLOCK
