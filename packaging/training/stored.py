"""The tensors of a GGUF file, as they lie there and as numbers."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from engine.header import read_layout


class Stored:
    """One file, read through the engine's own reader of headers, which skips the vocabulary."""

    def __init__(self, path: Path) -> None:
        self.path = path
        layout = read_layout(path)
        self.header, self._data_at = layout.values, layout.data_at
        self.tensors = {tensor.name: tensor for tensor in layout.tensors}
        self._data = np.memmap(path, dtype=np.uint8, mode="r")

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """The bytes of a tensor, [..., bytes of a row]."""
        tensor = self.tensors[name]
        start = self._data_at + tensor.offset
        return self._data[start : start + tensor.size].reshape(*reversed(tensor.dims[1:]), -1)

    def kind(self, name: str) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType(self.tensors[name].kind)

    def values(self, name: str) -> npt.NDArray[np.float32]:
        """The numbers of a tensor, F32, slowest dimension first."""
        kind, raw = self.kind(name), self.raw(name)
        if kind == gguf.GGMLQuantizationType.F32:
            return raw.copy().view(np.float32)
        return np.ascontiguousarray(gguf.dequantize(np.ascontiguousarray(raw), kind), dtype=np.float32)
