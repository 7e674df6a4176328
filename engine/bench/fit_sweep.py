"""What a person could set by hand, tried in a running engine: the best of it is what `auto` is held to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

from engine.bench.prompts import MEASURED, WARM_UP
from engine.events import Timings

WARM_TOKENS = 128  # after another budget: its slots fill, and what goes first must not pay for that
_LESS = 0.75  # of the budget that was planned, or of what the model takes without one

#: Asks a text in a mode with so many draft experts (0: as the engine has it), for so many tokens.
Ask = Callable[[str, str, int, int], Awaitable[Timings]]


@dataclass(slots=True)
class Cell:
    """A setting and what it came to. `draft_experts` 0: the mode drafts with none, or as it sees fit."""

    budget_bytes: int
    mode: str
    draft_experts: int = 0
    tokens: int = 0
    ms: float = 0.0

    def add(self, timings: Timings) -> None:
        self.tokens += timings.predicted_n
        self.ms += timings.predicted_ms

    @property
    def tok_s(self) -> float:
        return 1e3 * self.tokens / self.ms if self.ms else 0.0


def budgets(planned: int, taken: int, limit: int) -> list[int]:
    """As planned (0: no limit), less, and more where the limit leaves some."""
    found = [planned, int(_LESS * (planned or taken))]
    return [*found, planned + (limit - planned) // 2] if planned and limit > planned else found


def by_hand(sizes: list[int], used: int) -> list[Cell]:
    """Every exact mode a chat offers in budgets of such `sizes`; drafts with 1, 2 and 4 of `used` experts."""
    drafting = [count for count in (1, 2, 4) if count < used]
    return [
        Cell(budget, mode, count)
        for budget in sizes
        for mode, count in (("ar", 0), ("ngram", 0), *(("s2-exact", count) for count in drafting))
    ]


async def sweep(
    cells: list[Cell], auto: Cell, tokens: int, ask: Ask, change_budget: Callable[[int], Awaitable[bool]]
) -> None:
    """Fills `cells` and `auto`, in turns, one for each of MEASURED; `auto` goes first and last. Cells of a
    budget that is refused stay empty. What an engine learns once per model and machine, k', it learns before.
    """
    await ask(WARM_UP, auto.mode, 0, tokens)
    for text in MEASURED:
        for budget, some in _by_budget(cells):
            if not await change_budget(budget):
                continue
            await ask(WARM_UP, "ar", 0, WARM_TOKENS)
            theirs = [auto, *some, auto] if budget == auto.budget_bytes else some
            for cell in theirs:
                cell.add(await ask(text, cell.mode, cell.draft_experts, tokens))


def _by_budget(cells: list[Cell]) -> Iterator[tuple[int, list[Cell]]]:
    for budget in dict.fromkeys(cell.budget_bytes for cell in cells):
        yield budget, [cell for cell in cells if cell.budget_bytes == budget]
