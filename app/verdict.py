"""Whether a model runs on this machine, in a word and a line; which of several suits it best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import BadRequest
from engine.plan import make_plan
from engine.size import size

if TYPE_CHECKING:
    from engine.device import Device
    from engine.model import ModelInfo
    from engine.plan import Wishes


@dataclass(frozen=True, slots=True)
class Verdict:
    """`word` is a key of GLYPHS. `share`: of the model's routed experts, how many stay in memory, 0 to 1."""

    word: str
    words: str
    share: float = 1.0

    def __str__(self) -> str:
        return f"{GLYPHS[self.word]} {self.word}"


FITS, DISK, SLOW, CANNOT, UNREADABLE = "fits", "from disk", "too large", "cannot run", "unreadable"
#: A colour alone says nothing on a terminal without colours.
GLYPHS = {FITS: "●", DISK: "◐", SLOW: "○", CANNOT: "▲", UNREADABLE: "▲"}


def verdict(device: Device, model: ModelInfo, wishes: Wishes) -> Verdict:
    """What the plan for `model` comes to on `device`."""
    try:
        plan = make_plan(device, model, wishes)
    except BadRequest as error:
        return Verdict(CANNOT, error.line(), 0.0)
    free = size(device.available_bytes)
    whole = plan.other_bytes + plan.expert_bytes
    if plan.store and plan.budget_bytes and plan.budget_bytes < whole:
        kept = max(0, plan.budget_bytes - plan.other_bytes)
        share = kept / plan.expert_bytes
        return Verdict(
            DISK,
            f"needs {size(whole)}, runs within {size(plan.budget_bytes)}: {100 * share:.0f}% of its experts "
            "stay in memory, the others are read as they are needed",
            share,
        )
    if whole <= (plan.budget_bytes or device.available_bytes):
        return Verdict(FITS, f"needs {size(whole)} of {free} that are free")
    why = (
        "its experts cannot be read one by one"
        if not plan.expert_bytes
        else "even its other weights are too much"
    )
    return Verdict(SLOW, f"needs {size(whole)}, {free} are free, and {why}: it would crawl", 0.0)


def best(rated: Iterable[tuple[Path, ModelInfo, Verdict]]) -> Path | None:
    """Of those that run well the one that can do most: models of experts first, since they are faster than
    their size says, then the larger. From disk a model runs well while it keeps half of its experts.
    """

    def rank(item: tuple[Path, ModelInfo, Verdict]) -> tuple[bool, bool, int]:
        _, model, found = item
        well = found.word == FITS or (found.word == DISK and found.share >= 0.5)
        return well, model.is_moe, model.size_bytes

    able = [item for item in rated if item[2].word in (FITS, DISK)]
    return max(able, key=rank)[0] if able else None
