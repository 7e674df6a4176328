"""What a session has learned while it answered, and keeps from one answer to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import median

from engine.acceptance import Acceptance
from engine.prices import Mean, Prices
from engine.trial import Trial

_STEPS = 64  # the latest


class DraftKind:
    """What is known of drafts of one kind: by one drafter, and with so many experts where it has a choice.

    `trial`: whether drafting so pays, by whole blocks.
    """

    def __init__(self, prices: Prices) -> None:
        self.prices, self.trial = prices, Trial()
        self._step = Mean()
        self._steps: deque[float] = deque(maxlen=_STEPS)
        self._tables: dict[bool, Acceptance] = {}
        self._siblings: dict[bool, Acceptance] = {}
        self._news_share = Mean()

    @property
    def news_share(self) -> float:
        """Of the experts that candidates would add to a pass, those that it asked for: fewer where it leans
        towards experts its positions share."""
        return self._news_share(1.0)

    def verified(self, expected: float, came: float) -> None:
        """Candidates would have added so many experts to a pass, and so many came beside the root's."""
        if expected > 0:
            self._news_share.add(min(1.0, max(0.0, came / expected)))

    @property
    def step_ms(self) -> float:
        """C_draft: a draft step; until one was measured as much as a plain pass."""
        return self._step(self.prices.plain_ms)

    @property
    def usual_step_ms(self) -> float:
        """What a step takes when nothing disturbs it: what is remembered for long should not rest on that."""
        return median(self._steps) if self._steps else self.step_ms

    def stepped(self, ms: float) -> None:
        """A draft step was run, for the pass that comes next."""
        self._step.add(ms)
        self._steps.append(ms)
        self.prices.drafted()

    def acceptance(self, *, greedy: bool) -> Acceptance:
        """One table for the likeliest token, one for drawn ones."""
        return self._tables.setdefault(greedy, Acceptance())

    def siblings(self, *, greedy: bool) -> Acceptance:
        """The same for the likeliest tokens beside what the draft drew."""
        return self._siblings.setdefault(greedy, Acceptance())

    def tables(self) -> Iterator[tuple[str, Acceptance]]:
        for tables, end in ((self._tables, ""), (self._siblings, ", siblings")):
            for greedy, table in tables.items():
                yield ("likeliest" if greedy else "drawn") + end, table


class Experience:
    """Prices of passes, and how each kind of draft fares."""

    def __init__(self) -> None:
        self.prices = Prices()
        self._kinds: dict[tuple[str, int], DraftKind] = {}

    def kind(self, drafter: str, experts: int = 0) -> DraftKind:
        return self._kinds.setdefault((drafter, experts), DraftKind(self.prices))

    def tables(self) -> Iterator[tuple[str, Acceptance]]:
        """All of acceptance, with the name of what each is about."""
        for (drafter, experts), kind in self._kinds.items():
            for how, table in kind.tables():
                yield f"{drafter}{f' k={experts}' if experts else ''}, {how}", table
