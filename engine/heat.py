"""Which experts a model's conversations use, kept from one start to the next: the store begins with those.

A cache: what is missing, damaged or of another model is as good as nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.model import ModelInfo


def heat_file(info: ModelInfo, folder: Path) -> Path:
    """Where in `folder` the heat of this model lies; another file under the same name is another model."""
    identity = f"{info.path.resolve()}\0{info.size_bytes}\0{info.n_layer}\0{info.n_expert}"
    return folder / f"{hashlib.sha256(os.fsencode(identity)).hexdigest()[:24]}.npy"


def read_heat(file: Path) -> npt.NDArray[np.float32] | None:
    """Heat as `write_heat` left it; None without any that makes sense."""
    try:
        heat = np.load(io.BytesIO(file.read_bytes()), allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    sane = heat.ndim == 2 and heat.dtype == np.float32 and np.isfinite(heat).all() and (heat >= 0).all()
    return heat if sane else None


def write_heat(file: Path, heat: npt.NDArray[np.float32]) -> None:
    """Leaves `heat` for the next start, whole or not at all."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.part")
        data = io.BytesIO()
        np.save(data, heat.astype(np.float32), allow_pickle=False)
        try:
            part.write_bytes(data.getvalue())
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
