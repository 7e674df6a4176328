"""What somebody who watches a request sees of its decode loop: the latest blocks, and the experts."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from engine.events import Block, Look

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from engine.draft import Draft
    from engine.session import Session

#: Blocks of one look; a small model makes more between two.
MOST_BLOCKS = 24

#: Shortest time between two looks. They travel with the text that came meanwhile and wake nobody.
_LOOK_EVERY_S = 0.2


class Watch:
    """Any thread may set `on`, also while the answer is being written; all else is the decode thread's.

    While it is off a block costs two looks at a flag.
    """

    def __init__(self, on: bool = False) -> None:
        self.on = on
        self._active = False  # `on`, as it was before the pass
        self._due = False
        self._looked_at = 0.0
        self._where: npt.NDArray[np.uint8] | None = None
        self._blocks: deque[Block] = deque(maxlen=MOST_BLOCKS)
        self._count = 0

    def before_pass(self, session: Session) -> None:
        self._active = self.on
        if not self._active:
            self._forget()
        session.keep_routing(self._active)
        self._due = self._active and time.monotonic() - self._looked_at >= _LOOK_EVERY_S
        self._where = session.where_experts() if self._due else None

    def after_pass(
        self, session: Session, draft: Draft, judged: int, accepted: int, drawn: Sequence[int], ms: float
    ) -> Look | None:
        """The target looked at `judged` tokens of `draft`, drew `drawn`, and `accepted` of it were the same.

        Returns a look where it is time for one.
        """
        if not self._active:
            return None
        names = session.vocab.shown
        self._blocks.append(
            Block(
                draft.source if draft.tokens else "",
                tuple(names(token) for token in draft.by_fate(drawn)[:judged]),
                accepted,
                tuple(names(token) for token in drawn[accepted:]),
                ms,
            )
        )
        self._count += 1
        if not self._due:
            return None
        self._looked_at = time.monotonic()
        look = Look(
            tuple(self._blocks),
            self._count - len(self._blocks),
            session.experts_of_pass(1 + len(draft.tokens), self._where),
        )
        self._forget()
        return look

    def end(self, session: Session) -> Look | None:
        """What is left when the answer is over. Prompts must not pay for it."""
        session.keep_routing(False)
        look = None
        if self.on and self._blocks:
            look = Look(tuple(self._blocks), self._count - len(self._blocks))
        self._forget()
        return look

    def _forget(self) -> None:
        self._blocks.clear()
        self._count = 0
