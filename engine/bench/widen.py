"""A larger model with the same text: every routed expert gets neurons that contribute nothing.

An expert computes down(act(gate x) * up x). The gate rows of the added neurons are zero, and so are their
biases; zero stays zero through every activation in use (silu, gelu, relu and its square, gpt-oss's), so
their hidden values are exactly zero. They come in whole blocks of `down`'s type: a kernel which quantises
hidden values block by block never has an added one in a block with real ones. Families without gates have
zero `up` rows.

In many families the shared experts are as wide as some whole number of routed ones. There that number is
lowered, and the shared experts get as many neurons as it takes to come out even.

Every sum is then over the same numbers and some zeros. Where the old width fills a kernel's stride (two
blocks at most, 64 numbers for F32 and BF16) its bits are the same too; what is left over, kernels may round
differently.

In the header only numbers change: it is copied and written over. A split set becomes one file: the first
file's header, with the descriptions of the others' tensors behind those of its own.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np

from engine.bench.filler import TYPES, Bytes, Fill, Filler
from engine.errors import BadRequest, ModelError
from engine.header import ARRAY, BLOCKS, SCALARS, Layout, Tensor, read_layout
from engine.model import files_of, read_model_info

_WIDENED = re.compile(r"blk\.\d+\.ffn_(gate|up|gate_up|down)_(exps|shexp)\.(weight|bias)")
_DENSE_DOWN = re.compile(r"blk\.\d+\.ffn_down\.weight")
#: Architectures whose experts are as wide as `feed_forward_length` says, whatever other keys there are.
_ONE_WIDTH = frozenset(
    {"arctic", "dbrx", "granite", "granitehybrid", "granitemoe", "graniteswitch", "granite_swa", "jamba"}
    | {"llama", "minicpm", "minimax-01", "mistral3", "nomic-bert-moe", "olmoe", "phimoe", "refact"}
)
_LEAST_STEP = 32  # neurons: the block of quantised hidden values where `down` has a type without blocks
_N_FILES = "split.count"
_N_TENSORS_AT = 8  # where a header says how many there are
_CHUNK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A file of the model that is widened. In the result's header the descriptions of its tensors stand
    `moved` bytes further on than in its own."""

    path: Path
    layout: Layout
    moved: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the result: `count` runs of bytes of the source, `added` bytes behind each."""

    source: Source
    tensor: Tensor
    dims: tuple[int, ...]
    run: int
    added: int
    count: int
    fills: tuple[Fill, ...]  # of the runs in turn
    offset: int = 0

    @property
    def size(self) -> int:
        return self.count * (self.run + self.added)


@dataclass(frozen=True, slots=True)
class Widened:
    """A model to be written: its parts in the order of their data, and the header's new values."""

    sources: tuple[Source, ...]
    parts: tuple[Part, ...]
    values: dict[str, tuple[int, int]]  # of each key the old number and the new one
    n_ff_exp: int

    @property
    def alignment(self) -> int:
        return self.sources[0].layout.alignment

    @property
    def data_at(self) -> int:
        """Where the data of the first tensor begin."""
        last = self.sources[-1]
        return _aligned(last.layout.tensors_end + last.moved, self.alignment)

    @property
    def size(self) -> int:
        last = self.parts[-1]
        return self.data_at + _aligned(last.offset + last.size, self.alignment)

    @property
    def experts_size(self) -> int:
        """Bytes of all routed experts."""
        return sum(part.size for part in self.parts if "_exps." in part.tensor.name)

    def write(self, file: BinaryIO, seed: int, progress: Callable[[int], None]) -> None:
        """Writes the model; `progress` hears how many bytes there are so far."""
        data = {source: np.memmap(source.path, dtype=np.uint8, mode="r") for source in self.sources}
        file.write(self._header(data))
        for part in self.parts:
            _pad(file, self.data_at + part.offset)
            start = part.source.layout.data_at + part.tensor.offset
            for chunk in _chunks(part, data[part.source][start : start + part.tensor.size], seed):
                file.write(chunk.data)
                progress(file.tell())
        _pad(file, self.size)

    def _header(self, data: Mapping[Source, Bytes]) -> bytearray:
        first = self.sources[0]
        header = bytearray(data[first][: first.layout.tensors_at].tobytes())
        for source in self.sources:
            header += data[source][source.layout.tensors_at : source.layout.tensors_end].tobytes()
        struct.pack_into("<Q", header, _N_TENSORS_AT, len(self.parts))
        for key, (old, new) in self.values.items():
            _overwrite(header, first.layout.places[key], old, new)
        for part in self.parts:
            n_dims, at = len(part.dims), part.tensor.at + part.source.moved
            struct.pack_into(f"<{n_dims}Q", header, at + 4, *part.dims)
            struct.pack_into("<Q", header, at + 4 + 8 * n_dims + 4, part.offset)
        return header


class Widening:
    """A MoE model that can be widened; any file of a split set stands for it. Raises ModelError for one that
    cannot."""

    def __init__(self, path: Path) -> None:
        info = read_model_info(path)
        self._path, self._arch, self._size = path, info.arch, info.size_bytes
        self._sources = _sources(files_of(path))
        self._header = self._sources[0].layout.values
        self._tensors = tuple(tensor for source in self._sources for tensor in source.layout.tensors)
        self._named = {
            tensor.name: match
            for tensor in self._tensors
            if (match := _WIDENED.fullmatch(tensor.name)) is not None
        }
        if not info.is_moe:
            raise ModelError(f"{path}: a dense model, it has no experts to widen", hint="give an MoE model")
        self.width = self._width_of("exps")
        self._keys = self._width_keys()
        self._shared = self._shared_width()
        self._step = math.lcm(_LEAST_STEP, *(BLOCKS[tensor.kind][0] for tensor in self._downs()))

    def reaching(self, size: int) -> Widened:
        """The widened model of at least `size` bytes, and less than that with one step fewer."""
        if size <= self._size:
            raise BadRequest(
                f"{self._path} itself has {self._size:,} bytes", hint="ask for more with --bytes"
            )
        enough = 1
        while self.by_steps(enough).size < size:
            enough *= 2
        short = enough // 2
        while enough - short > 1:
            middle = (enough + short) // 2
            if self.by_steps(middle).size < size:
                short = middle
            else:
                enough = middle
        return self.by_steps(enough)

    def by_steps(self, steps: int) -> Widened:
        """The model with `steps` blocks of neurons more in every expert."""
        width = self.width + steps * self._step
        values = dict.fromkeys(self._keys, (self.width, width))
        if len(self._sources) > 1:
            values[_N_FILES] = (len(self._sources), 0)  # as llama.cpp's own tool merges a set
        shared = self._shared
        if shared:
            count = -(-shared // width)
            shared, key = count * width, f"{self._arch}.expert_shared_count"
            if key in self._header:
                values[key] = (self._shared // self.width, count)
        parts, end, alignment = [], 0, self._sources[0].layout.alignment
        for source in self._sources:
            for tensor in sorted(source.layout.tensors, key=lambda tensor: tensor.offset):
                offset = _aligned(end, alignment)
                parts.append(replace(self._part(source, tensor, width, shared), offset=offset))
                end = offset + parts[-1].size
        return Widened(self._sources, tuple(parts), values, width)

    def _part(self, source: Source, tensor: Tensor, width: int, shared: int) -> Part:
        match = self._named.get(tensor.name)
        if match is not None and match[2] == "exps":
            return self._stretched(source, tensor, match, self.width, width)
        if match is not None and shared:
            return self._stretched(source, tensor, match, self._shared, shared)
        return _copied(source, tensor)

    def _stretched(self, source: Source, tensor: Tensor, match: re.Match[str], old: int, new: int) -> Part:
        what, group, suffix = match.groups()
        if (what, suffix) == ("down", "bias"):
            return _copied(source, tensor)
        in_rows = suffix == "weight" and what != "down"  # a neuron is a row here, and a column of `down`
        axis, halves = int(in_rows), 2 if what == "gate_up" else 1
        if tensor.kind not in TYPES or len(tensor.dims) <= axis or tensor.dims[axis] != halves * old:
            raise ModelError(f"{self._path}: {tensor.name} has a type or a shape that cannot be widened")
        weights, block = BLOCKS[tensor.kind]
        per_row = tensor.dims[0] if in_rows else 1
        run, whole = (neurons * per_row // weights * block for neurons in (old, new))
        dims = (*tensor.dims[:axis], halves * new, *tensor.dims[axis + 1 :])
        fills = (Fill.ZERO,) if suffix == "bias" else self._fills(what, group)
        return Part(source, tensor, dims, run, whole - run, tensor.size // run, fills)

    def _fills(self, what: str, group: str) -> tuple[Fill, ...]:
        if what == "gate_up":
            return Fill.QUIET, Fill.LOUD
        gated = any(match[1] == "gate" and match[2] == group for match in self._named.values())
        quiet = what == "gate" or (what == "up" and not gated)
        return (Fill.QUIET if quiet else Fill.LOUD,)

    def _downs(self, group: str | None = None) -> Iterator[Tensor]:
        for tensor in self._tensors:
            match = self._named.get(tensor.name)
            if match is not None and (match[1], match[3]) == ("down", "weight") and group in (None, match[2]):
                yield tensor

    def _width_of(self, group: str) -> int:
        """Neurons of an expert of `group`; zero without such experts."""
        widths = {tensor.dims[0] for tensor in self._downs(group)}
        if len(widths) > 1 or (not widths and group == "exps"):
            raise ModelError(f"{self._path}: its experts do not all have one width, or are not stacked")
        return widths.pop() if widths else 0

    def _width_keys(self) -> list[str]:
        """The keys that say how wide the routed experts are."""
        own, common = (f"{self._arch}.{name}feed_forward_length" for name in ("expert_", ""))
        shares = self._arch in _ONE_WIDTH or own not in self._header
        keys = [key for key in (own, common) if self._says(key, self.width) and (key == own or shares)]
        dense = any(
            tensor.dims[0] == self.width for tensor in self._tensors if _DENSE_DOWN.fullmatch(tensor.name)
        )
        if not keys or (common in keys and dense):
            raise ModelError(f"{self._path}: its header has no width for the routed experts alone")
        return keys

    def _shared_width(self) -> int:
        """Neurons of the shared experts where they hang on the width of the routed ones, else zero."""
        width = self._width_of("shexp")
        if width == 0 or self._header.get(f"{self._arch}.expert_shared_feed_forward_length"):
            return 0
        count = self._header.get(f"{self._arch}.expert_shared_count", 1)
        return width if isinstance(count, int) and width == count * self.width else 0

    def _says(self, key: str, number: int) -> bool:
        value = self._header.get(key)
        return set(value) == {number} if isinstance(value, tuple) else value == number


def _sources(files: Sequence[Path]) -> tuple[Source, ...]:
    found: list[Source] = []
    end = 0  # of the descriptions, in the result
    for file in files:
        layout = read_layout(file)
        found.append(Source(file, layout, moved=end - layout.tensors_at if found else 0))
        end = layout.tensors_end + found[-1].moved
    return tuple(found)


def _copied(source: Source, tensor: Tensor) -> Part:
    return Part(source, tensor, tensor.dims, tensor.size, 0, 1, ())


def _chunks(part: Part, source: Bytes, seed: int) -> Iterator[Bytes]:
    """The data of `part`, a few megabytes at a time or a run of it, if that is more."""
    if not part.added:
        yield from (source[at : at + _CHUNK_BYTES] for at in range(0, part.size, _CHUNK_BYTES))
        return
    filler = Filler(part.tensor.name, part.tensor.kind, part.fills, seed)
    at_once = max(1, _CHUNK_BYTES // (part.run + part.added))
    runs = source.reshape(part.count, part.run)
    for start in range(0, part.count, at_once):
        count = min(at_once, part.count - start)
        chunk = np.empty((count, part.run + part.added), dtype=np.uint8)
        chunk[:, : part.run] = runs[start : start + count]
        chunk[:, part.run :] = filler.rows(start, count, part.added)
        yield chunk


def _overwrite(header: bytearray, place: tuple[int, int], old: int, new: int) -> None:
    """Puts `new` where `old` stands, in every item of an array."""
    kind, at = place
    count = 1
    if kind == ARRAY:
        kind, count = struct.unpack_from("<IQ", header, at)
        at += 12
    item = struct.Struct("<" + SCALARS[kind])
    for index in range(count):
        if item.unpack_from(header, at + index * item.size)[0] == old:
            item.pack_into(header, at + index * item.size, new)


def _aligned(number: int, alignment: int) -> int:
    return -(-number // alignment) * alignment


def _pad(file: BinaryIO, to: int) -> None:
    file.write(bytes(to - file.tell()))
