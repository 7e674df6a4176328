"""What the decode loop says while it works: prefill progress, tokens, and the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["eos", "stop_string", "max_tokens", "context", "cancel"]

#: How each reason reads in the OpenAI protocol, which knows two.
OPENAI_FINISH: dict[FinishReason, str] = {
    "eos": "stop",
    "stop_string": "stop",
    "max_tokens": "length",
    "context": "length",
    "cancel": "stop",
}


@dataclass(frozen=True, slots=True)
class Timings:
    """Counts and times of one request so far; names follow llama.cpp's `timings` object.

    Times are milliseconds. `prompt_n` counts tokens that were decoded for the prompt, `cache_n` those
    that were already in the KV cache. `predicted_n` counts delivered tokens. `draft_n` counts drafted
    tokens that a verify pass looked at, `draft_n_accepted` those that survived.
    """

    prompt_n: int = 0
    cache_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0
    verify_n: int = 0
    context_n: int = 0

    @property
    def prompt_per_second(self) -> float:
        return 1e3 * self.prompt_n / self.prompt_ms if self.prompt_ms else 0.0

    @property
    def predicted_per_second(self) -> float:
        return 1e3 * self.predicted_n / self.predicted_ms if self.predicted_ms else 0.0

    @property
    def acceptance(self) -> float | None:
        """Drafted tokens accepted / drafted tokens verified; None when none was verified."""
        return self.draft_n_accepted / self.draft_n if self.draft_n else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Tokens drawn per verify pass, the bonus token included; 1 in plain decode."""
        return 1 + self.draft_n_accepted / self.verify_n if self.verify_n else None

    def as_json(self) -> dict[str, float | int]:
        return {
            "prompt_n": self.prompt_n,
            "cache_n": self.cache_n,
            "prompt_ms": round(self.prompt_ms, 3),
            "prompt_per_second": round(self.prompt_per_second, 3),
            "predicted_n": self.predicted_n,
            "predicted_ms": round(self.predicted_ms, 3),
            "predicted_per_second": round(self.predicted_per_second, 3),
            "draft_n": self.draft_n,
            "draft_n_accepted": self.draft_n_accepted,
            "verify_n": self.verify_n,
            "context_n": self.context_n,
        }


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens are in the KV cache; `cached` of them were there before."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one block delivered: whole characters only, so `text` may lag behind `ids`."""

    text: str
    ids: tuple[int, ...]
    timings: Timings


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a request. `text` is what was still held back for a stop string or a character."""

    reason: FinishReason
    text: str
    timings: Timings


Event = Prefill | Tokens | Done
