"""What the expert store did between two looks at its counters."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from engine.events import StoreFigures

if TYPE_CHECKING:
    from engine.store import Store, StoreStats

_COUNTED = tuple(item.name for item in fields(StoreFigures) if item.name != "stall_ms")


def figures_since(before: StoreStats | None, store: Store | None) -> StoreFigures | None:
    """None without a store or a first look, and where every expert was in memory all the time."""
    if before is None or store is None:
        return None
    now = store.stats()
    if now.n_resident == now.n_experts and now.reads == before.reads:
        return None
    counts = {name: getattr(now, name) - getattr(before, name) for name in _COUNTED}
    return StoreFigures(**counts, stall_ms=(now.stall_ns - before.stall_ns) / 1e6)
