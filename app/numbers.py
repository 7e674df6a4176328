"""A plan's numbers as people and programs read them: each with its unit and its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.lossy import mode_words
from engine.forecast import PROMPT, Range
from engine.model import ModelInfo
from engine.plan import Plan
from engine.size import size


@dataclass(frozen=True, slots=True)
class Number:
    """`words`: the value for people; `value`: the same as JSON, a range as [low, high]."""

    name: str
    label: str
    value: Any
    words: str
    unit: str
    reason: str


def numbers_of(plan: Plan, model: ModelInfo) -> list[Number]:
    """Every number of the plan, the most important first."""
    why = plan.reasons
    limit = plan.budget_bytes or plan.total_bytes
    gpu = "all" if plan.gpu_layers < 0 and "fits" in why["gpu_layers"] else "none"
    drafts = [
        Number(
            "draft_experts",
            "draft experts",
            plan.speculation.draft_experts,
            f"{plan.speculation.draft_experts} of {model.n_expert_used}",
            "experts",
            why["draft_experts"],
        ),
        Number(
            "cap",
            "reuse cap",
            plan.speculation.cap,
            f"{plan.speculation.cap} of {model.n_expert}",
            "experts",
            why["cap"],
        ),
    ]
    length = plan.speculation.draft_length
    from_disk = plan.store and bool(plan.budget_bytes)  # else every expert has its place
    return [
        Number("budget_bytes", "budget", limit, size(limit), "bytes", why["budget_bytes"]),
        *_memory(plan),
        Number("n_ctx", "context", plan.n_ctx, f"{plan.n_ctx}", "tokens", why["n_ctx"]),
        Number("cache_type", "KV cache", plan.cache_type, plan.cache_type, "", why["cache_type"]),
        Number("n_threads", "threads", plan.n_threads, f"{plan.n_threads}", "threads", why["n_threads"]),
        Number("gpu_layers", "GPU layers", gpu, gpu, "", why["gpu_layers"]),
        Number("store", "from disk", from_disk, "yes" if from_disk else "no", "", why["store"]),
        Number("repack", "faster layout", plan.repack, "yes" if plan.repack else "no", "", why["repack"]),
        Number("mode", "mode", plan.speculation.mode, mode_words(plan.speculation.mode), "", why["mode"]),
        *(drafts if model.is_moe else ()),
        Number("draft_length", "draft length", length, f"{length}", "tokens", why["draft_length"]),
        *_forecast(plan),
    ]


def _memory(plan: Plan) -> list[Number]:
    beside = "weights outside the experts, KV cache, buffers and the process, estimated from the header"
    held = plan.held_bytes
    share = f" of {size(plan.expert_bytes)}"
    return [
        Number(
            "total_bytes", "takes", plan.total_bytes, size(plan.total_bytes), "bytes", "the sum of its parts"
        ),
        Number("other_bytes", "beside experts", plan.other_bytes, size(plan.other_bytes), "bytes", beside),
        Number("held_bytes", "experts", held, size(held) + share, "bytes", plan.reasons["store"]),
    ]


def _forecast(plan: Plan) -> list[Number]:
    seen = plan.forecast
    if seen is None:
        return []
    rows = [
        ("hit", "hit rate", seen.hit, f"{_range(seen.hit, 100)} %", "share"),
        (
            "tokens_per_s",
            "speed",
            seen.tokens_per_s,
            f"{_range(seen.tokens_per_s)} tok/s",
            "tokens per second",
        ),
        ("prefill_s", f"{PROMPT}-token prompt", seen.prefill_s, f"{_range(seen.prefill_s)} s", "seconds"),
        ("read_bytes", "read per token", seen.read_bytes, _sizes(seen.read_bytes), "bytes"),
    ]
    return [
        Number(name, label, [value.low, value.high], words, unit, seen.reasons[name])
        for name, label, value, words, unit in rows
    ]


def _range(value: Range, factor: float = 1.0) -> str:
    low, high = (_rounded(bound * factor) for bound in (value.low, value.high))
    return low if low == high else f"{low} to {high}"


def speed_words(plan: Plan) -> str:
    """Predicted tokens per second, in short."""
    return _range(plan.forecast.tokens_per_s) if plan.forecast is not None else "?"


def _rounded(number: float) -> str:
    return f"{number:.0f}" if number >= 10 else f"{number:.1f}"


def _sizes(value: Range) -> str:
    low, high = size(value.low), size(value.high)
    return low if low == high else f"{low} to {high}"
