"""What training has come to, written so that a kill at any moment leaves the file before or the file
after."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from training.student import MATRICES, Moe


def save(path: Path, state: dict[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load(path: Path, device: torch.device) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return state


def packed(layers: Sequence[Moe]) -> list[dict[str, torch.Tensor]]:
    return [moe.state() for moe in layers]


def unpacked(states: Sequence[dict[str, torch.Tensor]]) -> list[Moe]:
    return [Moe(*(state[name].clone() for name in ("router", *MATRICES))) for state in states]
