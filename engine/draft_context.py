"""A second llama context over the same model, in which drafts are made apart from the target's KV cache.

That is how drafting was done before contexts were shared (S2-MoE, section 5, baseline ES): every cell was
written by a pass of few experts, so what such passes get wrong adds up, and each token costs the draft a pass
of its own. It is there for comparison. Its memory is taken from the experts while it is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from engine.context import Context
from engine.errors import BadRequest, ModelError, S2Error
from engine.native import CancelFlag
from engine.size import size
from engine.timeline import same_start

#: Seconds unused after which a request of another mode frees it.
KEPT_S = 60.0


class DraftContext:
    """`tokens`: what its cells hold, all of them written with `experts` per token."""

    def __init__(self, cells: Context) -> None:
        self.cells = cells
        self.tokens: list[int] = []
        self.experts = 0

    def keep(self, tokens: list[int], experts: int) -> int:
        """Cuts what does not belong to `tokens`, read with so many experts; how many of them it has read."""
        same = 0
        if experts == self.experts:  # what was read last time mostly goes on: compared at once
            goes_on = tokens[: len(self.tokens)] == self.tokens
            same = len(self.tokens) if goes_on else same_start(self.tokens, tokens)
        self.experts = experts
        if same < len(self.tokens):
            del self.tokens[self.cells.cut(same) :]
        return len(self.tokens)

    def read(self, tokens: Sequence[int]) -> None:
        """One pass over `tokens`, behind those that are there."""
        self.cells.decode(tokens, len(self.tokens), all_logits=False)
        self.tokens += tokens


class Annex:
    """Makes the second context when it is asked for, and frees it when nobody has for a while.

    `make` it; `need`: bytes it will take; `lend`: bytes it takes, below 0 when it is gone, and BadRequest
    where there is no room. The decode thread's.
    """

    def __init__(
        self,
        make: Callable[[], Context],
        need: Callable[[], int],
        lend: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make, self._need, self._lend, self._clock = make, need, lend, clock
        self._context: DraftContext | None = None
        self._used_at = 0.0
        self._flag: CancelFlag | None = None
        self.size_bytes = 0

    def take(self) -> DraftContext:
        """The context, for now. Raises BadRequest where there is no memory for it."""
        self._used_at = self._clock()
        if self._context is None:
            self._context = DraftContext(self._made())
            if self._flag is not None:
                self._context.cells.hooks.stop_on(self._flag)
        return self._context

    def stop_on(self, flag: CancelFlag) -> None:
        """Passes end early once `flag` is set."""
        self._flag = flag
        if self._context is not None:
            self._context.cells.hooks.stop_on(flag)

    def rest(self) -> None:
        """Nobody needs it now."""
        if self._context is not None and self._clock() - self._used_at >= KEPT_S:
            self.close()

    def close(self) -> None:
        if self._context is not None:
            self._context.cells.close()
            self._context = None
            self._lend(-self.size_bytes)
            self.size_bytes = 0

    def _made(self) -> Context:
        need = self._need()
        try:
            self._lend(need)
        except BadRequest as error:
            raise _no_room(need, error) from error
        try:
            context = self._make()
        except ModelError as error:
            self._lend(-need)
            raise _no_room(need, error) from error
        self.size_bytes = need
        return context


def _no_room(need: int, error: S2Error) -> BadRequest:
    return BadRequest(
        f"a second context for drafts takes {size(need)}: {error.message}",
        hint="s2-exact drafts without one; or a smaller -c, or a larger budget",
    )
