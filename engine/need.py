"""How much memory a loaded model takes, estimated from its header. The load finds out what it really is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.request import CACHE_TYPES
from engine.size import size

if TYPE_CHECKING:
    from engine.model import ModelInfo

#: Python, the libraries and the vocabulary, measured at 48 to 52 MiB.
PROCESS_BYTES = 56 << 20
PROCESS_LEAST_BYTES = 48 << 20
#: What a process with a budget keeps free of experts: it still grows by as much when it works.
GROWTH_BYTES = 32 << 20
_SLOT_LAYERS = 2  # layers whose experts must have a place at once: one is multiplied, another arrives


@dataclass(frozen=True, slots=True)
class Need:
    """Bytes of each part.

    `resident`: weights outside the experts, `copies` of them; `slots`: the fewest experts in memory;
    `rounding`: what all of them take in slots beyond their own bytes. `cache` is an upper bound: some models
    keep less for some layers.
    """

    resident: int
    copies: int
    experts: int
    rounding: int
    slots: int
    cache: int
    compute: int
    process: int = PROCESS_BYTES

    @property
    def base(self) -> int:
        """What is there however few experts are."""
        return self.resident + self.copies + self.cache + self.compute + self.process

    @property
    def least(self) -> int:
        return self.base + self.slots + GROWTH_BYTES

    def certain(self, *, whole: bool) -> int:
        """With less the model cannot run, held `whole` or in part, whatever the estimates are worth."""
        return self.resident + (self.experts if whole else self.slots) + PROCESS_LEAST_BYTES

    @property
    def whole(self) -> int:
        return self.base + self.experts + self.rounding

    def words(self, *, whole: bool) -> str:
        """The sum, part by part."""
        parts = [
            (self.resident + self.copies, "weights that stay"),
            (self.experts + self.rounding if whole else self.slots, "experts"),
            (self.cache, "KV cache"),
            (self.compute + self.process, "buffers and the process"),
        ]
        return " + ".join(f"{size(count)} {what}" for count, what in parts if count)


def cell_bytes(model: ModelInfo, cache_type: str) -> int:
    """Of the KV cache for one token; `cache_type` is a key of CACHE_TYPES."""
    return math.ceil(model.kv_bytes_per_token * CACHE_TYPES[cache_type] / CACHE_TYPES["f16"])


def need_of(model: ModelInfo, *, n_ctx: int, cell_bytes: int, n_ubatch: int, n_outputs: int) -> Need:
    """For `n_ctx` tokens of `cell_bytes` each, and passes of `n_ubatch` rows, `n_outputs` with logits."""
    slots = _SLOT_LAYERS * model.n_expert_used * model.largest_expert_bytes
    return Need(
        resident=model.size_bytes - model.expert_bytes,
        copies=model.tied_bytes,
        experts=model.expert_bytes,
        rounding=max(0, model.slots_bytes - model.expert_bytes),
        slots=min(model.expert_bytes, slots),
        cache=n_ctx * cell_bytes,
        compute=n_ubatch * (model.row_bytes + model.mask_bytes * n_ctx) + n_outputs * model.output_bytes,
    )
