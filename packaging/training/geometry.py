"""Shapes the embedded model may take, and what each weighs in a file."""

from __future__ import annotations

from dataclasses import dataclass

N_LAYER, N_EMBD, N_FF, N_HEAD, N_HEAD_KV, N_VOCAB = 30, 576, 1536, 9, 3, 49152  # the teacher's
HEAD = N_EMBD // N_HEAD  # numbers in a head
LIMIT_FILE, LIMIT_ALL = 95_000_000, 115_000_000  # bytes

_BLOCK = {
    "F32": (1, 4),
    "F16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q8_0": (32, 34),
}
_HEADER = 1_830_000  # bytes of vocabulary, merges and names of tensors, measured


@dataclass(frozen=True, slots=True)
class Geometry:
    """`experts` of `width` neurons in each layer, `used` of them per token, a shared expert of `shared`
    neurons, and the first `dense` layers as they are in the teacher.

    `embedding`: "copy" for the teacher's own blocks (Q8_0), or the type they are rounded to. `down`: the
    type of the experts' down weights: blocks of 32 numbers do not fit experts of 16 neurons.
    """

    name: str
    experts: int
    used: int
    width: int
    shared: int
    dense: int
    embedding: str = "copy"
    down: str = "Q4_0"

    @property
    def moe_layers(self) -> range:
        return range(self.dense, N_LAYER)

    @property
    def shared_count(self) -> int:
        """The shared expert in units of a routed one, as the family counts it."""
        if self.shared % self.width:
            raise ValueError(f"{self.name}: {self.shared} shared neurons are no multiple of {self.width}")
        return self.shared // self.width

    @property
    def file_bytes(self) -> int:
        """Bytes of the model's files together, within a few thousand."""
        attention = _size("Q4_1", 2 * N_EMBD * (N_EMBD + N_HEAD_KV * HEAD)) + 2 * _size("F32", N_EMBD)
        routed = self.experts * self.width * N_EMBD
        moe = (
            _size("Q4_0", 2 * routed + 3 * self.shared * N_EMBD)
            + _size(self.down, routed)
            + _size("F32", self.experts * N_EMBD)
        )
        embedding = "Q8_0" if self.embedding == "copy" else self.embedding
        return (
            _HEADER
            + _size(embedding, N_VOCAB * N_EMBD)
            + N_LAYER * attention
            + self.dense * _size("Q4_1", 3 * N_FF * N_EMBD)
            + len(self.moe_layers) * moe
        )

    @property
    def active_share(self) -> float:
        """Feed-forward neurons computed for a token, against the teacher's."""
        return (self.shared + self.used * self.width) / N_FF


#: What `build --stage pareto` compares: as many neurons in the shared expert as the limit of bytes leaves.
#: Layers that stay dense buy the others a larger shared expert. The embedding in Q5_0 costs nothing on
#: conversations and 1 % of perplexity on text, in Q4_0 8 % and 4 %: `d8-q4` is there to show it.
GEOMETRIES: dict[str, Geometry] = {
    geometry.name: geometry
    for geometry in (
        Geometry("64x32", 64, 8, 32, 512, 3, embedding="Q5_0"),
        Geometry("64x32-s384", 64, 8, 32, 384, 3, embedding="Q5_0"),
        Geometry("64x32-d6", 64, 8, 32, 640, 6, embedding="Q5_0"),
        Geometry("64x32-d8", 64, 8, 32, 768, 8, embedding="Q5_0"),
        Geometry("64x32-d8-q4", 64, 8, 32, 928, 8, embedding="Q4_0"),
        Geometry("64x32-d10", 64, 8, 32, 896, 10, embedding="Q5_0"),
        Geometry("64x32-d12", 64, 8, 32, 1056, 12, embedding="Q5_0"),
        Geometry("48x32-copy", 48, 8, 32, 512, 3),
        Geometry("64x16-f16", 64, 8, 16, 512, 3, embedding="Q5_0", down="F16"),
        Geometry("32x32-one", 32, 8, 32, 512, 3, embedding="Q5_0"),
    )
}
DEFAULT = "64x32-d12"


def _size(kind: str, count: int) -> int:
    weights, size = _BLOCK[kind]
    return count // weights * size
