"""How far a draft goes: which candidates are worth a draft step, and which a place in the verify pass.

A candidate's experts are known only once it was decoded by the draft, so there are two tests (S2-MoE, section
4.1, put right): draft it while its chance pays for the step and for what a position costs on average; admit
it while its chance pays for what it adds to this pass.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from engine.prices import Load, Prices

_CONFIDENT = 0.5  # of the confidence expansion: chance that all of a prefix is accepted


class Expansion(Protocol):
    """`chance` is that of the candidate and all before it being accepted. `by_prices`: it needs them, and a
    block goes without a draft where they say so."""

    by_prices: ClassVar[bool]

    def worth_drafting(self, chance: float) -> bool:
        """Whether to decode the candidate with the draft, which shows its experts and what follows it."""
        ...

    def worth_verifying(self, chance: float, news: Load | None) -> bool:
        """Whether it goes into the pass, `news` being what it adds; None: not known."""
        ...


class Fixed:
    """As many as the request's draft length says."""

    by_prices = False

    def __init__(self, prices: Prices) -> None: ...

    def worth_drafting(self, chance: float) -> bool:  # noqa: ARG002
        return True

    def worth_verifying(self, chance: float, news: Load | None) -> bool:  # noqa: ARG002
        return True


class Confidence:
    """While the draft is sure enough, whatever it costs."""

    by_prices = False

    def __init__(self, prices: Prices) -> None: ...

    def worth_drafting(self, chance: float) -> bool:
        return chance >= _CONFIDENT

    def worth_verifying(self, chance: float, news: Load | None) -> bool:  # noqa: ARG002
        return chance >= _CONFIDENT


class Utility:
    """The paper's U = p·T_AR / (ΔC + C_draft) ≥ 1, to the letter: the draft step counts in both tests."""

    by_prices = True

    def __init__(self, prices: Prices) -> None:
        self._prices = prices

    def worth_drafting(self, chance: float) -> bool:
        return chance * self._prices.plain_ms >= self._prices.draft_ms + self._prices.more_ms()

    def worth_verifying(self, chance: float, news: Load | None) -> bool:
        cost = self._prices.more_ms() if news is None else self._prices.news_ms(news)
        return chance * self._prices.plain_ms >= self._prices.draft_ms + cost


class Priced:
    """By what is still to be paid: a draft step that has been made costs nothing more."""

    by_prices = True

    def __init__(self, prices: Prices) -> None:
        self._prices = prices

    def worth_drafting(self, chance: float) -> bool:
        prices = self._prices
        return prices.known and chance * prices.plain_ms >= prices.draft_ms + prices.more_ms()

    def worth_verifying(self, chance: float, news: Load | None) -> bool:
        prices = self._prices
        cost = prices.more_ms() if news is None else prices.news_ms(news)
        return prices.known and chance * prices.plain_ms >= cost


#: By the names of `engine.request.EXPANSIONS`.
EXPANSIONS: dict[str, type[Fixed] | type[Confidence] | type[Utility] | type[Priced]] = {
    "priced": Priced,
    "utility": Utility,
    "confidence": Confidence,
    "fixed": Fixed,
}
