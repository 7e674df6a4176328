"""What has been seen of an answer's blocks while somebody watched."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.events import Block, ExpertMap, Look

_KEPT = 64  # blocks: more than any screen shows


class Looks:
    """`blocks` are the latest without a gap, oldest first; `experts` those of the last look that had any."""

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque(maxlen=_KEPT)
        self.experts: ExpertMap | None = None

    def take(self, look: Look | None) -> None:
        if look is not None:
            if look.skipped:
                self.blocks.clear()  # what stands side by side must have followed each other
            self.blocks.extend(look.blocks)
            self.experts = look.experts or self.experts

    @property
    def sources(self) -> Counter[str]:
        """How many of the blocks were drafted by whom, "" by nobody."""
        return Counter(block.source for block in self.blocks)

    @property
    def length(self) -> float | None:
        """Tokens drafted per block that was drafted; None when none was."""
        drafts = [len(block.drafted) for block in self.blocks if block.drafted]
        return sum(drafts) / len(drafts) if drafts else None
