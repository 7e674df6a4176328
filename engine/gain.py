"""How much faster an answer is than plain decode would have been."""

from __future__ import annotations


class Gain:
    """Counts blocks. One without a draft is plain decode, and is measured; of the others it is known what
    they took, and what plain decode takes is looked up at the end: early that was often measured cold.
    """

    def __init__(self) -> None:
        self._ms = self._plain_ms = 0.0
        self._drafted_n = 0  # tokens of blocks with a draft

    def add(self, tokens: int, ms: float, draft_ms: float, *, drafted: bool) -> None:
        """A block gave `tokens` in `ms`, of which `draft_ms` went by before its full pass."""
        self._ms += ms
        if drafted:
            self._drafted_n += tokens
        else:
            self._plain_ms += ms - draft_ms

    def over(self, plain_ms: float) -> float | None:
        """`plain_ms`: of a token by plain decode, 0 where unknown. None before there was a draft."""
        if not self._drafted_n or not plain_ms:
            return None
        return (self._plain_ms + self._drafted_n * plain_ms) / self._ms
