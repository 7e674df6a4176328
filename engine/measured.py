"""What a calibration found, kept from one start to the next: one small file per model and machine.

A cache: what is missing, damaged or of another model or machine is as good as nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.device import Device
from engine.model import ModelInfo
from engine.paths import calibration_cache
from engine.seeds import Measured


def measured_file(info: ModelInfo, device: Device, folder: Path | None = None) -> Path:
    """Where it lies in `folder`, or in the cache."""
    model = f"{info.path.resolve()}\0{info.size_bytes}\0{info.n_layer}\0{info.n_expert}\0{info.n_expert_used}"
    identity = os.fsencode(f"{model}\0{device.arch}\0{device.name}\0{device.cores}")
    return (folder or calibration_cache()) / f"{hashlib.sha256(identity).hexdigest()[:24]}.json"


def read_measured(file: Path, info: ModelInfo) -> Measured | None:
    """What `write_measured` left there; None without anything that makes sense for this model."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    experts = found.get("draft_experts") if isinstance(found, dict) else None
    if isinstance(experts, bool) or not isinstance(experts, int) or not 1 <= experts <= info.n_expert_used:
        return None
    return Measured(draft_experts=experts)


def write_measured(file: Path, draft_experts: int, tried: Sequence[Mapping[str, object]]) -> None:
    """Leaves the choice and what it rests on for the next start, whole or not at all."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.part")
        try:
            part.write_text(json.dumps({"draft_experts": draft_experts, "tried": list(tried)}))
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
