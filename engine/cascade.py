"""How many tokens to draft, by test and set: Cascade (arXiv 2506.20675), a baseline of S2-MoE, section 6.

Each of a few lengths is tried for some blocks, none among them, and the one that gave the most tokens per
second is kept for a while. Where that was none, the next test comes ever later. Draft time counts.
"""

from __future__ import annotations

_TRIED_BLOCKS = 4  # of each length
_SET_BLOCKS, _LONGEST_SET = 16, 256


class Cascade:
    """Of one request: how far drafting goes depends on the text. `length` and `judged` take turns."""

    def __init__(self) -> None:
        self._to_try: list[int] = []
        self._rates: dict[int, float] = {}
        self._length = self._asked = 0
        self._testing = False
        self._left = 0  # blocks
        self._tokens, self._ms = 0, 0.0
        self._next_set = _SET_BLOCKS

    def length(self, most: int) -> int:
        """Of this block's draft; `most` but for the end of an answer is the request's draft length."""
        if self._left == 0:
            self._go_on(most)
        self._asked = min(self._length, most)
        return self._asked

    def judged(self, tokens: int, ms: float) -> None:
        """The block gave `tokens` in `ms`."""
        if self._asked < self._length:
            return  # the answer's end cut it: it says nothing of the length
        self._tokens, self._ms = self._tokens + tokens, self._ms + ms
        self._left -= 1

    def _go_on(self, most: int) -> None:
        """To the next length to try, or to the one that has won."""
        if self._testing:
            self._rates[self._length] = self._tokens / max(self._ms, 1e-6)
        elif not self._to_try:
            self._to_try, self._rates, self._testing = sorted({0, 1, most // 2, most}), {}, True
        self._tokens, self._ms = 0, 0.0
        if self._to_try:
            self._length, self._left = self._to_try.pop(0), _TRIED_BLOCKS
        else:
            self._set(max(self._rates, key=lambda length: self._rates[length]))

    def _set(self, length: int) -> None:
        self._length, self._testing = length, False
        if length:
            self._next_set = _SET_BLOCKS
        self._left = self._next_set
        if not length:
            self._next_set = min(2 * self._next_set, _LONGEST_SET)
