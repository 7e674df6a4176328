"""How far a draft goes: which candidates are worth a draft step, and which a place in the verify pass.

A candidate's experts are known only once it was decoded by the draft, so there are two tests (S2-MoE, section
4.1, put right): draft it while its chance pays for the step and for what a position costs on average; admit
it while its chance pays for what it adds to this pass.
"""

from __future__ import annotations

from typing import Protocol

from engine.cascade import Cascade
from engine.experience import DraftKind
from engine.prices import Load

SAMPLE = 4  # tokens per block
_CONFIDENT = 0.5  # of the confidence expansion: chance that all of a prefix is accepted


class Expansion(Protocol):
    """Of one request. `chance` is that of the candidate and all before it being accepted.

    `width`: candidates that each node offers, what the draft drew and siblings of it; 1 for chains.
    """

    width: int

    def limit(self, most: int) -> int:
        """How many tokens this block may draft, of `most` that are allowed; 0 for plain decode. Once per
        block."""
        ...

    def worth_drafting(self, chance: float) -> bool:
        """Whether to decode the candidate with the draft, which shows its experts and what follows it."""
        ...

    def worth_verifying(self, chance: float, news: Load | None) -> bool:
        """Whether it goes into the pass, `news` being what it adds; None: not known."""
        ...

    def judged(self, tokens: int, ms: float) -> None:
        """The block that `limit` was asked for gave `tokens` in `ms`, its draft included."""
        ...


class Fixed:
    """As many as the request's draft length says."""

    width = 1

    def __init__(self, kind: DraftKind) -> None: ...

    def limit(self, most: int) -> int:
        return most

    def worth_drafting(self, chance: float) -> bool:  # noqa: ARG002
        return True

    def worth_verifying(self, chance: float, news: Load | None) -> bool:  # noqa: ARG002
        return True

    def judged(self, tokens: int, ms: float) -> None: ...


class Sampled(Fixed):
    """A few, whether they pay or not: to find out what drafts of a kind are worth."""

    def limit(self, most: int) -> int:
        return min(most, SAMPLE)


class Confidence(Fixed):
    """While the draft is sure enough, whatever it costs."""

    def worth_drafting(self, chance: float) -> bool:
        return chance >= _CONFIDENT

    def worth_verifying(self, chance: float, news: Load | None) -> bool:  # noqa: ARG002
        return chance >= _CONFIDENT


class Priced:
    """By what is still to be paid: a draft step that has been made costs nothing more.

    Where prices decide how far a block goes, they decide whether it goes at all: blocks with a draft are
    tried, and go on while they are faster than plain decode. Not by tokens alone: a draft also reads ahead.
    """

    width = 1

    def __init__(self, kind: DraftKind) -> None:
        self._kind, self._prices = kind, kind.prices
        self._tried = False

    def limit(self, most: int) -> int:
        self._tried = self._prices.known and self._kind.trial.due()
        return most if self._tried else 0

    def worth_drafting(self, chance: float) -> bool:
        return self._pays(chance, self._kind.step_ms + self._prices.more_ms())

    def worth_verifying(self, chance: float, news: Load | None) -> bool:
        return self._pays(chance, self._news_ms(news))

    def judged(self, tokens: int, ms: float) -> None:
        if self._tried:
            self._kind.trial.result(tokens * self._prices.plain_ms - ms)

    def _news_ms(self, news: Load | None) -> float:
        if news is None:
            return self._prices.more_ms()
        return self._prices.news_ms(news.scaled(self._kind.news_share))

    def _pays(self, chance: float, ms: float) -> bool:
        return self._prices.known and chance * self._prices.plain_ms >= ms


class Utility(Priced):
    """The paper's U = p·T_AR / (ΔC + C_draft) ≥ 1, to the letter: the draft step counts in both tests."""

    def worth_verifying(self, chance: float, news: Load | None) -> bool:
        return self._pays(chance, self._kind.step_ms + self._news_ms(news))


class Unseen(Priced):
    """By what a position costs on average, its own router not asked: prices know what is in memory, not what
    this candidate would read. As EcoSpec chooses."""

    def worth_verifying(self, chance: float, news: Load | None) -> bool:  # noqa: ARG002
        return super().worth_verifying(chance, None)


class Tree(Priced):
    """With siblings in the queue, the likeliest tokens beside what the draft drew. They pay for a place in
    the pass as all others do; a leaf needs no draft step."""

    width = 3


class Tested(Fixed):
    """By the throughput of whole blocks, as Cascade does it."""

    def __init__(self, kind: DraftKind) -> None:
        super().__init__(kind)
        self._cascade = Cascade()

    def limit(self, most: int) -> int:
        return self._cascade.length(most)

    def judged(self, tokens: int, ms: float) -> None:
        self._cascade.judged(tokens, ms)


#: By the names of `engine.request.EXPANSIONS`.
EXPANSIONS: dict[str, type[Fixed] | type[Priced]] = {
    "priced": Priced,
    "utility": Utility,
    "unseen": Unseen,
    "confidence": Confidence,
    "fixed": Fixed,
    "cascade": Tested,
    "tree": Tree,
}
