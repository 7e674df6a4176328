"""A student that goes on from a model that was trained before, as its GGUF holds it."""

from __future__ import annotations

from pathlib import Path

import torch

from engine.model import files_of
from training.geometry import Geometry
from training.stored import Stored
from training.student import Moe

_PARTS = {
    "router": ("ffn_gate_inp",),
    "gate_up": ("ffn_gate_exps", "ffn_up_exps"),
    "down": ("ffn_down_exps",),
    "shared_gate_up": ("ffn_gate_shexp", "ffn_up_shexp"),
    "shared_down": ("ffn_down_shexp",),
}


def started(model: Path, geometry: Geometry, device: torch.device) -> tuple[list[Moe], float]:
    """The layers of `model`, a file or the first of a split set, and its routing scale.

    Raises ValueError when it has another geometry.
    """
    files = [Stored(path) for path in files_of(model)]
    header = files[0].header
    found = (header["deepseek.expert_count"], header["deepseek.expert_feed_forward_length"])
    if found != (geometry.experts, geometry.width):
        raise ValueError(f"{model}: {found[0]} experts of {found[1]} neurons, {geometry.name} has others")

    def values(index: int, name: str) -> torch.Tensor:
        tensor = f"blk.{index}.{name}.weight"
        file = next(file for file in files if tensor in file.tensors)
        return torch.from_numpy(file.values(tensor))

    def joined(index: int, names: tuple[str, ...]) -> torch.Tensor:
        # gates above ups, along the neurons: the last dimension but one
        return torch.cat([values(index, name) for name in names], dim=-2).to(device)

    layers = [
        Moe(**{part: joined(index, names) for part, names in _PARTS.items()}) for index in geometry.moe_layers
    ]
    return layers, float(header["deepseek.expert_weights_scale"])
