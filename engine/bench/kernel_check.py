"""`bench kernels --check`: a row's product is the same to the last bit, whatever stands beside it.

Every row is computed alone by one thread and then among others, at another place, by several numbers of
threads. The row alone is compared with a float64 product of the dequantised weights, which tells a right
kernel from one that is merely consistent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.bench.ggml import F32, I32, TYPES, Backend, Context, Library

WIDTHS = (256, 512, 1024, 2048)  # of a weight row: from one block of a K type up
HEIGHTS = (24, 40, 33)  # weight rows; what cannot be repacked, like 33, is checked in plain buffers
ROWS = (*range(1, 17), 31, 32)
THREADS = (1, 2, 3)
TOLERANCE = 0.02  # of a result's norm: activations are rounded to 8 bits
_EXPERTS, _USED = 6, 3

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Operands:
    """Rows to multiply: activations [rows, width], or for experts [rows, 1 or used, width] and their ids."""

    activations: Floats
    ids: Ids | None = None

    def take(self, which: Sequence[int] | npt.NDArray[Any]) -> Operands:
        return Operands(self.activations[which], None if self.ids is None else self.ids[which])


def check(
    library: Library,
    name: str,
    kind: str,
    buffers: int,
    *,
    exact: bool = True,
    heights: Sequence[int] = HEIGHTS,
    widths: Sequence[int] = WIDTHS,
) -> list[str]:
    """What is wrong with the products of a type and kind ("dense" or "expert") in a buffer type."""
    found: list[str] = []
    with Backend(library, 1, exact=exact) as backend:
        for height in heights:
            for width in widths:
                sizes = (width, height) if kind == "dense" else (width, height, _EXPERTS)
                if buffers in library.buffers_for(name, *sizes):
                    found += _check_shape(library, backend, name, kind, buffers, height, width)
    return found


def _check_shape(
    library: Library, backend: Backend, name: str, kind: str, buffers: int, height: int, width: int
) -> Iterator[str]:
    random = np.random.default_rng(height * width)
    shape = (height,) if kind == "dense" else (_EXPERTS, height)
    values = random.standard_normal((*shape, width), dtype=np.float32)
    packed = library.quantize(name, values.reshape(-1, width))
    true = _dequantised(name, packed).reshape(*shape, width)
    with Context(library, 1) as held:
        weights = held.tensor(TYPES[name], width, *reversed(shape))
        held.allocate(buffers)
        held.write(weights, packed)
        for label, operands in _operands(kind, width, random).items():
            where = f"{height} x {width}, {label}"
            alone = np.concatenate(
                [
                    _products(library, backend, weights, height, operands.take([i]), (1,))[0]
                    for i in range(max(ROWS))
                ]
            )
            if (error := _error(alone, true, operands)) > TOLERANCE or np.isnan(error):
                yield f"{where}: off by {error:.3g} of the norm"
            for rows in ROWS:
                which = (5 * rows + np.arange(rows)) % max(ROWS)  # not at the place it had alone
                results = _products(library, backend, weights, height, operands.take(which), THREADS)
                for threads, result in zip(THREADS, results, strict=True):
                    if not np.array_equal(result.view(np.uint32), alone[which].view(np.uint32)):
                        yield f"{where}: {rows} rows, {threads} threads: bits differ from one row alone"


def _operands(kind: str, width: int, random: np.random.Generator) -> dict[str, Operands]:
    """Rows as a model presents them: experts share a row at first and have one each in the end."""

    def values(*shape: int) -> Floats:
        return random.standard_normal((max(ROWS), *shape), dtype=np.float32)

    if kind == "dense":
        return {"dense": Operands(values(width))}
    chosen = random.permuted(np.tile(np.arange(_EXPERTS, dtype=np.int32), (max(ROWS), 1)), axis=1)
    together: Ids = np.tile(chosen[:1, :_USED], (max(ROWS), 1))
    return {
        "same experts": Operands(values(1, width), together),
        "mixed experts": Operands(values(_USED, width), chosen[:, :_USED]),
    }


def _products(
    library: Library, backend: Backend, weights: int, height: int, operands: Operands, threads: Sequence[int]
) -> list[Floats]:
    """The products with all rows in one graph, computed once for each number of threads."""
    activations, ids = operands.activations, operands.ids
    shape = (len(activations), height) if ids is None else (*ids.shape, height)
    results = []
    with Context(library, 3, graphs=1) as context:
        rows = context.tensor(F32, *reversed(activations.shape))
        experts = None if ids is None else context.tensor(I32, *reversed(ids.shape))
        product = context.product(weights, rows, experts)
        context.allocate()
        context.write(rows, activations)
        if ids is not None and experts is not None:
            context.write(experts, ids)
        graph = context.graph([product])
        for count in threads:
            context.write(product, np.full(shape, np.nan, dtype=np.float32))  # what is left out shows
            backend.set_threads(count)
            backend.compute(graph)
            results.append(context.read(product, shape))
    return results


def _dequantised(name: str, packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    values: npt.NDArray[np.float64] = dequantize(packed, GGMLQuantizationType[name]).astype(np.float64)
    return values


def _error(results: Floats, weights: npt.NDArray[np.float64], operands: Operands) -> float:
    """The largest distance of a result from the true product, in norms of the latter."""
    activations = operands.activations.astype(np.float64)
    if operands.ids is None:
        true = activations @ weights.T
    else:  # every expert for every row, then those that were asked for
        every = np.einsum("rak,enk->raen", activations, weights, optimize=True)
        row, slot = np.indices(operands.ids.shape)
        true = every[row, slot % activations.shape[1], operands.ids]
    distance = np.linalg.norm(results - true, axis=-1) / np.linalg.norm(true, axis=-1)
    return float(distance.max())
