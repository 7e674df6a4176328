"""Where each expert's weights lie: in the files of a GGUF model, or wherever else a catalogue says.

Routed experts are stacked: `blk.N.ffn_gate_exps.weight` and its like hold one matrix per expert of layer N,
one behind the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError
from engine.header import Tensor, read_layout
from engine.model import EXPERT_STACK, files_of

_ORDER = ("gate", "up", "gate_up", "down")  # in which a layer multiplies by them


@dataclass(frozen=True, slots=True)
class ExpertTensor:
    """One stack of experts: expert e has `expert_bytes` bytes at `offset + e * stride` of the file that is
    number `file` of its catalogue."""

    name: str
    layer: int
    n_expert: int
    expert_bytes: int
    file: int
    offset: int
    stride: int


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every stack of experts of a model. Those of a layer stand together, in the order they are multiplied;
    layers count upwards. A dense model has none."""

    files: tuple[Path, ...]
    tensors: tuple[ExpertTensor, ...]

    @property
    def expert_bytes(self) -> int:
        """Bytes of all experts of all layers."""
        return sum(tensor.n_expert * tensor.expert_bytes for tensor in self.tensors)

    @property
    def n_layers(self) -> int:
        """Layers that have experts."""
        return len({tensor.layer for tensor in self.tensors})

    @property
    def n_expert(self) -> int:
        """Experts of a layer, the most where layers differ; 0 without any."""
        return max((tensor.n_expert for tensor in self.tensors), default=0)


def catalogue_of(path: Path) -> Catalogue:
    """The experts of the model at `path`, as its GGUF has them; any file of a split set stands for it.

    Raises ModelError naming the file and the reason.
    """
    files = tuple(files_of(Path(path)))
    found: dict[tuple[int, int], ExpertTensor] = {}
    for number, file in enumerate(files):
        layout = read_layout(file)
        for tensor in layout.tensors:
            match = EXPERT_STACK.fullmatch(tensor.name)
            if match is None or len(tensor.dims) != 3:
                continue
            key = int(match[1]), _ORDER.index(match[2])
            if key in found:
                raise ModelError(f"{file}: {tensor.name} is in the model twice", hint="fetch it again")
            found[key] = _stack(tensor, key[0], number, layout.data_at)
    tensors = tuple(found[key] for key in sorted(found))
    _check_alike(files, tensors)
    return Catalogue(files, tensors)


def _stack(tensor: Tensor, layer: int, file: int, data_at: int) -> ExpertTensor:
    n_expert = tensor.dims[2]
    each = tensor.size // n_expert if n_expert else 0
    return ExpertTensor(tensor.name, layer, n_expert, each, file, data_at + tensor.offset, each)


def _check_alike(files: tuple[Path, ...], tensors: tuple[ExpertTensor, ...]) -> None:
    """Refuses stacks without weights, and layers whose stacks do not have the same number of experts."""
    counts: dict[int, int] = {}
    for tensor in tensors:
        if not tensor.expert_bytes or counts.setdefault(tensor.layer, tensor.n_expert) != tensor.n_expert:
            raise ModelError(
                f"{files[tensor.file]}: damaged, {tensor.name} has {tensor.n_expert} experts, "
                f"others of its layer {counts.get(tensor.layer, 0)}",
                hint="fetch it again",
            )
