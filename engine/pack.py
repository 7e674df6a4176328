"""A packed copy of a model's experts, one record per layer and expert: what one read fetches stands together.

A GGUF file has the gates of all experts of a layer, then their other matrices; an expert is read from three
places that no disk block boundary respects. A pack has

    page 0      magic, version, name of the layout, sizes, digests of index and table, digest of all that
    index       JSON: which files it was made from, and where what is
    table       SHA-256 of every record
    records     layer by layer, expert by expert; every tensor's part begins on a page, padded with zeros

An index is the same whenever it is made from the same model. So a pack is used only where making it anew
would give the same index: files of the same name, size, time and, in samples, content.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelError, S2Error
from engine.experts import Catalogue, ExpertTensor, catalogue_of
from engine.paths import packs_cache

VERSION = 1
LAYOUT = "plain"  # weights are laid out as in the GGUF file
PAGE = 4096
DIGEST_BYTES = 32  # SHA-256: current processors, ARM ones too, have instructions for it

_MAGIC = b"S2PACK\r\n"
_HEAD = struct.Struct("<8sI16s4xQQQ32s32s")  # magic, version, layout, index bytes, records, size, two digests
_PIECE = 8 << 20  # bytes moved at a time
_MOST_RECORDS = 512  # moved at a time; a call takes 1024 pieces at most
_INDEX_LIMIT = 64 << 20
_SAMPLES, _SAMPLE_BYTES, _FRONT_BYTES = 64, 4096, 1 << 20

Progress = Callable[[str, int, int], None]
"""Hears what is done ("checking" or "writing") and how many of how many bytes; what it raises ends it."""


def pack_of(path: Path, notice: Callable[[str], None] = lambda _: None) -> Catalogue | None:
    """The experts of the model at `path`, where its pack has them; None without a pack that can be used.

    `notice` hears why a pack that is there cannot be used. Raises ModelError for a model that cannot be read.
    """
    catalogue = catalogue_of(path)
    if not catalogue.tensors:
        return None
    blueprint, reasons = Blueprint.of(catalogue), []
    for place in places(catalogue.files[0]):
        if os.path.lexists(place):
            reason = why_not(place, blueprint)
            if not reason:
                return blueprint.catalogue_in(place)
            reasons.append(f"{place} is not used: {reason}; `s2chat models pack` makes it anew")
    for reason in reasons:
        notice(reason)
    return None


def places(model: Path) -> list[Path]:
    """Where a pack of the model with the first file `model` may be, the best place first."""
    real = model.resolve()
    digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
    found = [_beside(model), _beside(real), packs_cache() / f"{real.stem}-{digest}.s2pack"]
    return list(dict.fromkeys(found))


def _beside(model: Path) -> Path:
    stem = model.stem if model.suffix.lower() == ".gguf" else model.name
    return model.absolute().with_name(f"{stem}.s2pack")


def part_of(pack: Path) -> Path:
    """The unfinished pack beside `pack`."""
    return pack.with_name(pack.name + ".part")


@dataclass(frozen=True, slots=True)
class Layer:
    """The records of a layer: `n_expert` of `record` bytes from `at` on, the first of them number `first`.
    `parts` are stacks, each with its place in the record."""

    n_expert: int
    record: int
    at: int
    first: int
    parts: tuple[tuple[ExpertTensor, int], ...]


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes that are moved at a time: `start` to `stop` of each of `count` records from expert `expert` on.
    They stand together in the pack; where `count` is over 1, the records are whole."""

    layer: Layer
    expert: int
    count: int
    start: int
    stop: int

    @property
    def number(self) -> int:
        """Of its first record."""
        return self.layer.first + self.expert

    @property
    def at(self) -> int:
        return self.layer.at + self.expert * self.layer.record + self.start

    @property
    def each(self) -> int:
        return self.stop - self.start

    @property
    def size(self) -> int:
        return self.count * self.each


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A pack as it is to be: its index, and where things stand in it."""

    source: Catalogue
    index: bytes
    table_at: int
    n_records: int
    layers: tuple[Layer, ...]
    size: int

    @classmethod
    def of(cls, catalogue: Catalogue) -> Blueprint:
        """Of the model whose experts `catalogue` lists. Raises ModelError when its files cannot be read."""
        layers, end = _laid_out(catalogue)
        index = _index(catalogue, layers)
        n_records = sum(layer.n_expert for layer in layers)
        table_at = PAGE + padded(len(index))
        data_at = table_at + padded(n_records * DIGEST_BYTES)
        moved = tuple(
            Layer(layer.n_expert, layer.record, data_at + layer.at, layer.first, layer.parts)
            for layer in layers
        )
        return cls(catalogue, index, table_at, n_records, moved, data_at + end)

    def catalogue_in(self, pack: Path) -> Catalogue:
        """Where the experts lie in a pack that is made as this says."""
        return Catalogue(
            (pack,),
            tuple(
                ExpertTensor(s.name, s.layer, s.n_expert, s.expert_bytes, 0, layer.at + at, layer.record)
                for layer in self.layers
                for s, at in layer.parts
            ),
        )

    def spans(self) -> Iterator[Span]:
        """All records in their order, in pieces of a few megabytes."""
        for layer in self.layers:
            group = min(_MOST_RECORDS, max(1, _PIECE // layer.record))
            for expert in range(0, layer.n_expert, group):
                count = min(group, layer.n_expert - expert)
                for start in range(0, layer.record, _PIECE):
                    yield Span(layer, expert, count, start, min(start + _PIECE, layer.record))

    def head(self, table: bytes) -> bytes:
        """Page 0 of the pack with this table."""
        head = _HEAD.pack(
            _MAGIC,
            VERSION,
            LAYOUT.encode(),
            len(self.index),
            self.n_records,
            self.size,
            _digest(self.index),
            _digest(table),
        )
        return (head + _digest(head)).ljust(PAGE, b"\0")

    def name_of(self, record: int) -> str:
        """Of record number `record`, for people."""
        layer = next(layer for layer in self.layers if record < layer.first + layer.n_expert)
        return f"expert {record - layer.first} of layer {layer.parts[0][0].layer}"


class Digests:
    """Of the records, from their spans in order."""

    def __init__(self) -> None:
        self._open: list[Any] = []

    def feed(self, span: Span, data: memoryview) -> bytes:
        """The digests of the records that end with this span."""
        if span.start == 0:
            self._open = [hashlib.sha256() for _ in range(span.count)]
        for index, digest in enumerate(self._open):
            digest.update(data[index * span.each : (index + 1) * span.each])
        if span.stop < span.layer.record:
            return b""
        return b"".join(digest.digest() for digest in self._open)


def why_not(pack: Path, blueprint: Blueprint) -> str:
    """Why the file `pack` is no pack as `blueprint` says; empty when it is, as far as can be seen without
    reading the records."""
    try:
        with pack.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            page = file.read(PAGE)
            if len(page) < PAGE or page[:8] != _MAGIC:
                return "it is no pack, or a damaged one"
            _, version, layout, index_bytes, _, whole, index_digest, table_digest = _HEAD.unpack_from(page)
            if version != VERSION:
                return f"it is of version {version}, this version of s2chat reads {VERSION}"
            if page[_HEAD.size : _HEAD.size + DIGEST_BYTES] != _digest(page[: _HEAD.size]):
                return "its first page is damaged"
            if layout.rstrip(b"\0") != LAYOUT.encode():
                return "its weights are laid out in a way this version of s2chat does not know"
            if size != whole or index_bytes > _INDEX_LIMIT:
                return f"it is damaged, it has {size:,} bytes and should have {whole:,}"
            index = file.read(index_bytes)
            if _digest(index) != index_digest:
                return "its index is damaged"
            if index != blueprint.index:
                return _difference(index, blueprint.index)
            file.seek(blueprint.table_at)
            if _digest(file.read(blueprint.n_records * DIGEST_BYTES)) != table_digest:
                return "its table is damaged"
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    return ""


def damaged(pack: Path, blueprint: Blueprint, progress: Progress) -> list[str]:
    """Reads every record of the pack and names those whose bytes are not those that were written."""
    good = set()
    try:
        with pack.open("rb") as file:
            handle = file.fileno()
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)  # what the disk has is in question
            good = {number for number, wanted, got in records(handle, blueprint, progress) if wanted == got}
    except OSError as error:
        raise S2Error(f"{pack}: {error.strerror or error}") from error
    return [blueprint.name_of(number) for number in range(blueprint.n_records) if number not in good]


def records(handle: int, blueprint: Blueprint, progress: Progress) -> Iterator[tuple[int, bytes, bytes]]:
    """Of every record in turn its number, its digest in the table, and that of its bytes; ends where the file
    does."""
    digests, done = Digests(), 0
    buffer = memoryview(bytearray(max(span.size for span in blueprint.spans())))
    table = os.pread(handle, blueprint.n_records * DIGEST_BYTES, blueprint.table_at)
    for span in blueprint.spans():
        if os.preadv(handle, [buffer[: span.size]], span.at) < span.size:
            return
        forget(handle, span.at, span.at + span.size)
        got = digests.feed(span, buffer[: span.size])
        for index in range(len(got) // DIGEST_BYTES):
            at = (span.number + index) * DIGEST_BYTES
            digest = got[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
            yield span.number + index, table[at : at + DIGEST_BYTES], digest
        done += span.size
        progress("checking", done, blueprint.size)


def forget(handle: int, start: int, stop: int) -> None:
    """Has the page cache drop these bytes of a file. It drops whole groups of pages, which may be megabytes:
    those that the last call cut are dropped with this one."""
    start = max(0, start - _PIECE)
    os.posix_fadvise(handle, start, stop - start, os.POSIX_FADV_DONTNEED)


def padded(size: int) -> int:
    """`size` in whole pages."""
    return -(-size // PAGE) * PAGE


def _laid_out(catalogue: Catalogue) -> tuple[list[Layer], int]:
    """The layers, counted from the first record, and where they end."""
    stacks: dict[int, list[ExpertTensor]] = {}
    for stack in catalogue.tensors:
        stacks.setdefault(stack.layer, []).append(stack)
    layers: list[Layer] = []
    end = first = 0
    for of_layer in stacks.values():
        parts, record = [], 0
        for stack in of_layer:
            parts.append((stack, record))
            record += padded(stack.expert_bytes)
        layers.append(Layer(of_layer[0].n_expert, record, end, first, tuple(parts)))
        end += of_layer[0].n_expert * record
        first += of_layer[0].n_expert
    return layers, end


def _index(catalogue: Catalogue, layers: list[Layer]) -> bytes:
    found = {
        "files": _identity(catalogue),
        "layers": [
            {
                "layer": layer.parts[0][0].layer,
                "n_expert": layer.n_expert,
                "record": layer.record,
                "at": layer.at,
                "tensors": [
                    {"name": s.name, "at": at, "bytes": s.expert_bytes, "file": s.file, "from": s.offset}
                    for s, at in layer.parts
                ],
            }
            for layer in layers
        ],
    }
    return json.dumps(found, separators=(",", ":"), sort_keys=True).encode()


def _identity(catalogue: Catalogue) -> list[dict[str, object]]:
    """What tells the model's files from others: name, size, time, and a digest of the beginning and of pages
    of its experts."""
    every = max(1, len(catalogue.tensors) // _SAMPLES)
    found: list[dict[str, object]] = []
    for number, file in enumerate(catalogue.files):
        digest = hashlib.sha256()
        try:
            with file.open("rb", buffering=0) as source:
                about = os.fstat(source.fileno())
                digest.update(source.read(_FRONT_BYTES))
                for stack in catalogue.tensors[::every]:
                    if stack.file == number:
                        source.seek(stack.offset + stack.n_expert // 2 * stack.stride)
                        digest.update(source.read(min(_SAMPLE_BYTES, stack.expert_bytes)))
        except OSError as error:
            raise ModelError(
                f"{file}: {error.strerror or error}", hint="check that you may read it"
            ) from error
        found.append(
            {
                "name": os.fsencode(file.name).decode("utf-8", "replace"),
                "size": about.st_size,
                "time": about.st_mtime_ns,
                "sample": digest.hexdigest(),
            }
        )
    return found


def _difference(theirs: bytes, ours: bytes) -> str:
    """What in the model differs from what the pack was made of."""
    try:
        then, now = json.loads(theirs)["files"], json.loads(ours)["files"]
        names = [[file["name"] for file in files] for files in (then, now)]
        if names[0] != names[1]:
            return f"it was made from {names[0][0]}"
        for old, new in zip(then, now, strict=True):
            for what in ("size", "time", "sample"):
                if old[what] != new[what]:
                    word = {"time": "date", "sample": "content"}.get(what, what)
                    return f"{new['name']} has another {word} than when it was packed"
    except (ValueError, KeyError, TypeError, IndexError):
        pass
    return "it was made by another version of s2chat"


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
