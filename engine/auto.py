"""Chooses for each block among no draft, looking up, and drafting by itself, by what each has cost here."""

from __future__ import annotations

from engine.draft import Draft, Drafter
from engine.experience import Experience
from engine.sampler import Sampler


class Auto:
    """`lookup` costs nothing to ask and prices its own proposal, so it comes first. `own`, None where the
    model cannot draft, costs passes and says itself whether they pay."""

    def __init__(self, lookup: Drafter, own: Drafter | None, experience: Experience) -> None:
        self._lookup, self._own, self._prices = lookup, own, experience.prices

    def begin(self) -> None:
        self._lookup.begin()
        if self._own is not None:
            self._own.begin()

    def propose(self, root: int, length: int, target: Sampler) -> Draft:
        draft = self._lookup.propose(root, length, target)  # also where it may not be used: it reads along
        if not self._prices.known:
            return Draft()
        if draft.tokens or self._own is None:
            return draft
        return self._own.propose(root, length, target)

    def judged(self, draft: Draft, accepted: int, looked_at: int, ms: float) -> None:
        if self._own is not None and draft.source == "self":
            self._own.judged(draft, accepted, looked_at, ms)
        elif draft.tokens:
            self._lookup.judged(draft, accepted, looked_at, ms)

    def close(self) -> None:
        self._lookup.close()
        if self._own is not None:
            self._own.close()
