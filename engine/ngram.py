"""Drafts by looking up what followed the last few tokens when they stood in this chat before.

Costs no pass of the model, and is right where an answer quotes: code, names, tables, summaries. It knows
only the prompt and the answer of its own request.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.draft import Draft
from engine.experience import Experience
from engine.request import Request
from engine.sampler import Sampler
from engine.session import Session

_KEY = 3  # tokens that must be the same at least
_LOOK_BACK = 16  # and at most so many are compared
_PLACES = 8  # latest places that are compared


class NgramDraft:
    """Reads the session's timeline along, each block what is new."""

    name = "ngram"

    def __init__(self, session: Session, request: Request, experience: Experience) -> None:
        self._session, self._prices = session, experience.prices
        self._acceptance = experience.kind(self.name).acceptance(greedy=request.sampling.is_greedy)
        self._text: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}

    def begin(self) -> None: ...

    def propose(self, root: int, length: int, target: Sampler) -> Draft:  # noqa: ARG002
        """As many of the tokens that followed the longest match as their chance pays for."""
        self._read((*self._session.timeline.tokens[len(self._text) :], root))
        place, same = self._best()
        tokens, claims, chance = list[int](), list[float](), 1.0
        for depth, token in enumerate(self._text[place : place + length] if same else ()):
            claim = (same + depth) / (same + depth + 1)
            chance *= self._acceptance.chance(claim)
            if chance * self._prices.plain_ms < self._prices.more_ms():
                break
            tokens.append(token)
            claims.append(claim)
        return Draft(tokens, claims, self.name)

    def judged(self, draft: Draft, accepted: int, looked_at: int, ms: float) -> None:  # noqa: ARG002
        self._acceptance.learn(draft.claims, accepted, looked_at)

    def close(self) -> None: ...

    def _read(self, tokens: Sequence[int]) -> None:
        """The chat goes on with `tokens`. A place is entered when something follows it."""
        for token in tokens:
            if len(self._text) >= _KEY:
                self._places.setdefault(tuple(self._text[-_KEY:]), []).append(len(self._text))
            self._text.append(token)

    def _best(self) -> tuple[int, int]:
        """Where the longest match goes on, and its length; the latest of several."""
        best, most = 0, 0
        for place in reversed(self._places.get(tuple(self._text[-_KEY:]), [])[-_PLACES:]):
            same = _KEY
            while (
                same < _LOOK_BACK and same < place and self._text[-same - 1] == self._text[place - same - 1]
            ):
                same += 1
            if same > most:
                best, most = place, same
        return best, most
