"""What a session has learned while it answered, and keeps from one answer to the next."""

from __future__ import annotations

from collections.abc import Iterator

from engine.acceptance import Acceptance
from engine.prices import Prices
from engine.request import Request
from engine.trial import Trial


class Experience:
    """Prices of passes, how drafts fare by drafter and way of drawing, and whether drafting by itself
    pays."""

    def __init__(self) -> None:
        self.prices = Prices()
        self.self_draft = Trial()
        self._tables: dict[tuple[str, bool, int], Acceptance] = {}

    def acceptance(self, drafter: str, request: Request) -> Acceptance:
        """The table of `drafter`: one for the likeliest token, one for drawn ones, and one per k'."""
        experts = request.speculation.draft_experts if drafter == "self" else 0
        key = (drafter, request.sampling.is_greedy, experts)
        return self._tables.setdefault(key, Acceptance())

    def tables(self) -> Iterator[tuple[str, Acceptance]]:
        """All of them, with the name of what they are about."""
        for (drafter, greedy, experts), table in self._tables.items():
            yield (
                f"{drafter}{f' k={experts}' if experts else ''}, {'likeliest' if greedy else 'drawn'}",
                table,
            )
