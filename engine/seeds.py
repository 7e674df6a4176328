"""How many experts a draft uses and how many a verify pass prefers, before anything is measured here."""

from __future__ import annotations

from dataclasses import dataclass

from engine.model import ModelInfo


@dataclass(frozen=True, slots=True)
class Seed:
    """A row of the paper's Table 1: experts per token, of a draft's token, preferred by a verify pass."""

    used: int
    draft: int
    cap: int


_TABLE_1 = {  # by the architecture's name in GGUF
    "olmoe": Seed(8, 2, 18),
    "deepseek2": Seed(6, 1, 16),
    "qwen3moe": Seed(8, 3, 14),
    "gpt-oss": Seed(4, 1, 6),
}
MEASURED_HERE = "measured here"  # a reason
_PART = 4  # the table's mean: a draft uses a quarter of the model's experts,
_TIMES = 2  # and a verify pass prefers twice as many


@dataclass(frozen=True, slots=True)
class Measured:
    """What a calibration found for this model on this device; None where it has not looked."""

    draft_experts: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """A number and its reason."""

    value: int
    reason: str


def draft_experts(model: ModelInfo, slowed: str, measured: Measured | None = None) -> Choice:
    """k' for `model`, from 1 to its own k; one less while the machine is `slowed`."""
    used = model.n_expert_used
    if measured is not None and measured.draft_experts is not None:
        return Choice(max(1, min(used, measured.draft_experts)), MEASURED_HERE)
    seed = _TABLE_1.get(model.arch)
    if seed is None:
        choice = Choice(max(1, used // _PART), "a quarter of the model's own")
    else:
        choice = Choice(max(1, min(used, used * seed.draft // seed.used)), _by_the_paper(model, seed))
    if slowed and choice.value > 1:
        return Choice(choice.value - 1, f"{choice.reason}, one less for {slowed}")
    return choice


def cap(model: ModelInfo, slowed: str) -> Choice:
    """Experts per layer that a verify pass prefers, no fewer than k; fewer while the machine is `slowed`."""
    used, whole = model.n_expert_used, model.n_expert
    seed = _TABLE_1.get(model.arch)
    if seed is None:
        choice = Choice(min(whole, _TIMES * used), "twice the model's own")
    else:
        choice = Choice(max(used, min(whole, used * seed.cap // seed.used)), _by_the_paper(model, seed))
    if slowed and choice.value > used:
        return Choice((choice.value + used) // 2, f"{choice.reason}, less for {slowed}")
    return choice


def _by_the_paper(model: ModelInfo, seed: Seed) -> str:
    same = seed.used == model.n_expert_used
    return (
        "Table 1 of the paper" if same else f"Table 1 of the paper, scaled to {model.n_expert_used} experts"
    )
