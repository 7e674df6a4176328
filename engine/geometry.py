"""Known models by the numbers of their public cards: what a file of one would be like, before it is here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from engine.errors import BadRequest
from engine.model import ModelInfo, row_bytes, slot_bytes

_FILE = Path(__file__).resolve().parent.parent / "assets" / "known-models.json"
_BLOCK = 256  # weights that a K type quantises together; shorter rows get another type
_SHORT = {4.5: 5.5, 5.5: 8.5, 6.5625: 8.5}

#: Of each quantisation: bits per weight of most matrices, of every second `down` matrix, of the output.
QUANTS = {
    "Q4_0": (4.5, 4.5, 6.5625),
    "Q4_K_M": (4.5, 6.5625, 6.5625),
    "Q5_K_M": (5.5, 6.5625, 6.5625),
    "Q6_K": (6.5625, 6.5625, 6.5625),
    "Q8_0": (8.5, 8.5, 8.5),
    "MXFP4": (4.25, 4.25, 8.5),
    "F16": (16.0, 16.0, 16.0),
}
_MXFP4_REST = 8.5  # files of this type keep all but the experts in Q8_0


@dataclass(frozen=True, slots=True)
class Geometry:
    """A model's numbers. `n_dense`: first layers without experts, `dense_ff` wide; `shared_ff`: width of the
    experts that see every token. `latent`: for latent attention, ranks of compressed keys and of queries (0:
    plain) and the head's parts (without position, with, value).

    `weights`, `active`: as its card says, in total and per token, for comparison.
    """

    name: str
    title: str
    arch: str
    weights: float
    active: float
    n_layer: int
    n_dense: int
    n_embd: int
    n_vocab: int
    n_head: int
    n_head_kv: int
    head: int
    n_expert: int
    n_expert_used: int
    expert_ff: int
    shared_ff: int
    dense_ff: int
    n_ctx_train: int
    tied: bool
    quants: tuple[str, ...]
    source: str
    latent: tuple[int, ...] = ()

    @property
    def n_moe(self) -> int:
        return self.n_layer - self.n_dense

    @property
    def expert(self) -> int:
        """Weights of one expert of one layer."""
        return 3 * self.n_embd * self.expert_ff

    @property
    def experts(self) -> int:
        return self.n_moe * self.n_expert * self.expert

    @property
    def total(self) -> int:
        embedding = self.n_vocab * self.n_embd * (1 if self.tied else 2)
        return self.experts + self._beside() + embedding

    @property
    def per_token(self) -> int:
        """Weights a token is multiplied with; a row of the embedding is only looked up."""
        used = self.n_moe * self.n_expert_used * self.expert
        return used + self._beside() + self.n_vocab * self.n_embd

    def _beside(self) -> int:
        """Weights outside experts and embedding; norms are too small to count."""
        router = self.n_moe * self.n_expert * self.n_embd
        shared = self.n_moe * 3 * self.n_embd * self.shared_ff
        return (
            self.n_layer * self._attention()
            + router
            + shared
            + self.n_dense * 3 * self.n_embd * self.dense_ff
        )

    def _attention(self) -> int:
        if self.latent:
            rank, query_rank, plain, rotary, value = self.latent
            query = self.n_head * (plain + rotary)
            queries = query_rank * (self.n_embd + query) if query_rank else self.n_embd * query
            keys = self.n_embd * (rank + rotary) + rank * self.n_head * (plain + value)
            return queries + keys + self.n_head * value * self.n_embd
        return self.n_embd * self.head * (2 * self.n_head + 2 * self.n_head_kv)

    def info(self, quant: str) -> ModelInfo:
        """As the header of a file in `quant` would say; sizes to a few percent."""
        usual, every_second, output = QUANTS[quant]
        rest = _MXFP4_REST if quant == "MXFP4" else None
        up = _bits(quant, usual, self.n_embd)
        down = (_bits(quant, usual, self.expert_ff) + _bits(quant, every_second, self.expert_ff)) / 2
        expert = int(self.expert * (2 * up + down) / 3 / 8)
        beside = int(self._beside() * (rest or _bits(quant, usual, self.n_embd)) / 8)
        table = self.n_vocab * self.n_embd
        embedding = int(table * (rest or _bits(quant, usual, self.n_embd)) / 8)
        head = int(table * (rest or _bits(quant, output, self.n_embd)) / 8)
        expert_bytes = self.n_moe * self.n_expert * expert
        return ModelInfo(
            path=Path(f"{self.name}-{quant}.gguf"),
            name=f"{self.title} {quant}",
            arch=self.arch,
            size_bytes=expert_bytes + beside + (head if self.tied else head + embedding),
            n_layer=self.n_layer,
            n_expert=self.n_expert,
            n_expert_used=self.n_expert_used,
            n_ctx_train=self.n_ctx_train,
            kv_bytes_per_token=2 * self._cache_numbers(),
            expert_bytes=expert_bytes,
            largest_expert_bytes=expert,
            tied_bytes=head if self.tied else 0,
            slots_bytes=self.n_moe * self.n_expert * 3 * slot_bytes(expert // 3),
            row_bytes=row_bytes(self.n_embd, self.n_expert_used, self.expert_ff),
            output_bytes=2 * 4 * self.n_vocab,
            lookup_bytes=0 if self.tied else embedding,
            n_weights=self.total,
        )

    def _cache_numbers(self) -> int:
        if self.latent:  # what llama.cpp keeps: the compressed keys, the values are a part of them
            return self.n_layer * (self.latent[0] + self.latent[3])
        return self.n_layer * 2 * self.n_head_kv * self.head


@cache
def known() -> dict[str, Geometry]:
    """Geometries by name, smallest first."""
    found = json.loads(_FILE.read_text(encoding="utf-8"))["models"]
    models = [
        Geometry(**{**item, "quants": tuple(item["quants"]), "latent": tuple(item.get("latent", ()))})
        for item in found
    ]
    return {model.name: model for model in sorted(models, key=lambda model: model.total)}


def by_name(words: str) -> ModelInfo | None:
    """The known model that `words` name, "olmoe" or "olmoe:Q8_0"; None where there is none of that name.

    Raises BadRequest for a quantisation that nobody knows.
    """
    name, _, quant = words.lower().partition(":")
    model = known().get(name)
    if model is None:
        return None
    kinds = {kind.lower(): kind for kind in QUANTS}
    if quant and quant not in kinds:
        raise BadRequest(f"{quant!r} is no quantisation known here", hint="one of " + ", ".join(QUANTS))
    return model.info(kinds[quant] if quant else model.quants[0])


def _bits(quant: str, bits: float, row: int) -> float:
    """Bits per weight of rows this long."""
    return _SHORT.get(bits, bits) if "_K" in quant and row % _BLOCK else bits
