"""Buffers to read files into as the store does."""

from __future__ import annotations

import ctypes
import mmap

import pytest

from engine.hugepage import HUGE_PAGE_BYTES, huge_page


def test_a_buffer_can_be_one_huge_page_and_is_gone_afterwards() -> None:
    with huge_page() as page:
        assert len(page) == HUGE_PAGE_BYTES
        assert ctypes.addressof(ctypes.c_char.from_buffer(page)) % HUGE_PAGE_BYTES == 0
        page[0] = page[-1] = 7
    with pytest.raises(ValueError, match="released"):
        bytes(page)


def test_a_kernel_without_huge_pages_gives_a_buffer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 12345)  # advice that no kernel knows
    with huge_page() as page:
        assert len(page) == HUGE_PAGE_BYTES
