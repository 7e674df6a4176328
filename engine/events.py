"""What the decode loop says while it works: prefill progress, tokens, and the end."""

from __future__ import annotations

import base64
from dataclasses import asdict, dataclass
from typing import Any, Literal

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
class StoreFigures:
    """What the expert store did for one answer so far, its prompt not counted.

    `asked` counts distinct experts of a layer, summed over layers and passes. `hits` of these were in memory
    when the layer asked; `late` were on their way, which is a miss. `prefetched` experts were read ahead,
    `prefetch_used` of these asked for before they were given up. `stall_ms`: passes stood waiting for reads.
    """

    asked: int = 0
    hits: int = 0
    late: int = 0
    bytes_read: int = 0
    bytes_prefetched: int = 0
    prefetched: int = 0
    prefetch_used: int = 0
    evicted: int = 0
    stall_ms: float = 0.0

    @property
    def hit_rate(self) -> float | None:
        """Experts in memory / experts asked for; None when none was."""
        return self.hits / self.asked if self.asked else None

    @property
    def late_rate(self) -> float | None:
        """Experts on their way / experts asked for; None when none was."""
        return self.late / self.asked if self.asked else None

    @property
    def prefetch_used_rate(self) -> float | None:
        """Experts read ahead that were asked for / those read ahead; None when none was."""
        return self.prefetch_used / self.prefetched if self.prefetched else None


@dataclass(frozen=True, slots=True)
class Timings:
    """Counts and times of one request so far; names follow llama.cpp's `timings` object.

    Times are milliseconds. `prompt_n` counts tokens that were decoded for the prompt, `cache_n` those
    that were already in the KV cache. `predicted_n` counts delivered tokens. `draft_n` counts drafted
    tokens that a verify pass looked at, `draft_n_accepted` those that survived. `gain`: speed over plain
    decode as its passes were measured lately, an estimate; None where nothing was drafted. `store`: None
    where all experts are in memory, and until the prompt is done.
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
    gain: float | None = None
    store: StoreFigures | None = None

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

    @property
    def mib_per_token(self) -> float | None:
        """MiB of experts read per delivered token; None without a store or a token."""
        return (
            self.store.bytes_read / self.predicted_n / (1 << 20) if self.store and self.predicted_n else None
        )

    @property
    def stall_ms_per_token(self) -> float | None:
        """Milliseconds spent waiting for reads per delivered token; None without a store or a token."""
        return self.store.stall_ms / self.predicted_n if self.store and self.predicted_n else None

    def as_json(self) -> dict[str, Any]:
        """The counts, and what follows from them; `store` only where there is one."""
        values: dict[str, Any] = {
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
            "gain": None if self.gain is None else round(self.gain, 4),
        }
        return values if self.store is None else values | {"store": self._store_json(self.store)}

    def _store_json(self, store: StoreFigures) -> dict[str, Any]:
        rates = {
            "hit_rate": store.hit_rate,
            "late_rate": store.late_rate,
            "prefetch_used_rate": store.prefetch_used_rate,
            "mib_per_token": self.mib_per_token,
            "stall_ms_per_token": self.stall_ms_per_token,
        }
        rounded = {name: None if rate is None else round(rate, 4) for name, rate in rates.items()}
        return {**asdict(store), "stall_ms": round(store.stall_ms, 3), **rounded}


@dataclass(frozen=True, slots=True)
class Block:
    """One block, token by token: of what `source` `drafted` and the target looked at, it took the first
    `accepted`, and went on with `own`: one token, or none where the answer ended before. `source` is "" where
    nothing was drafted."""

    source: str
    drafted: tuple[str, ...]
    accepted: int
    own: tuple[str, ...]
    ms: float

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ms": round(self.ms, 2)}


@dataclass(frozen=True, slots=True)
class ExpertMap:
    """Experts by layer: one bit each, layer by layer, the highest bit of a byte first.

    `used` by the last pass. Before it `there` were in memory and `coming` were on their way; None where all
    are in memory.
    """

    layers: int
    each: int
    used: bytes
    there: bytes | None = None
    coming: bytes | None = None

    def as_json(self) -> dict[str, Any]:
        bits = {"used": self.used, "there": self.there, "coming": self.coming}
        coded = {name: base64.b64encode(value).decode() for name, value in bits.items() if value is not None}
        return {"layers": self.layers, "each": self.each, **coded}


@dataclass(frozen=True, slots=True)
class Look:
    """What the decode loop did since the last look: the latest blocks, and how many before them are left
    out."""

    blocks: tuple[Block, ...]
    skipped: int = 0
    experts: ExpertMap | None = None

    def after(self, earlier: Look | None, most: int) -> Look:
        """Both as one, of at most `most` blocks."""
        if earlier is None:
            return self
        blocks = earlier.blocks + self.blocks
        left_out = max(0, len(blocks) - most)
        skipped = earlier.skipped + self.skipped + left_out
        return Look(blocks[left_out:], skipped, self.experts or earlier.experts)

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"blocks": [block.as_json() for block in self.blocks]}
        found |= {"skipped": self.skipped} if self.skipped else {}
        return found | ({"experts": self.experts.as_json()} if self.experts is not None else {})


@dataclass(frozen=True, slots=True)
class Prefill:
    """`done` of `total` prompt tokens are in the KV cache; `cached` of them were there before."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's bytes and the natural logarithm of its probability; `top`: those of the likeliest tokens."""

    piece: bytes
    logprob: float
    top: tuple[tuple[bytes, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one block delivered: whole characters only, so `text` may lag behind `ids`.

    `logprobs`: one of each id, where the request wants them. `look`: while it is watched, now and then.
    """

    text: str
    ids: tuple[int, ...]
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] = ()
    look: Look | None = None


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a request. `text` is what was still held back for a stop string or a character."""

    reason: FinishReason
    text: str
    timings: Timings
    look: Look | None = None


Event = Prefill | Tokens | Done
