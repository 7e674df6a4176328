"""The header of a GGUF file, and whether the file holds all that its header promises.

The `gguf` package reads headers too, but takes 1.8 s for a vocabulary of 49 k tokens, which it turns
into one Python object each, and trusts the lengths a file claims. This reader skips what it does not need and
checks every length against the file. It maps nothing: where a mapped page cannot be read, because the disk
fails or the file was cut meanwhile, the process dies, and this one may own the terminal.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError

Value = int | float | bool | str | tuple[int | float | bool | str, ...] | None

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, ARRAY = 8, 9
_KEEP_ITEMS = 1024  # longer arrays are vocabularies; nothing here asks for them
_KEEP_BYTES = 1 << 20  # nor for longer texts
_NAME_BYTES = 65535  # the longest key and tensor name
_ALIGNMENT = 32
_MAX_DIMS = 4
# Far more than any model has. Without an end, a large file of nothing keeps the reader busy for hours.
_MOST_KEYS, _MOST_TENSORS = 1 << 16, 1 << 18
_MOST_READ = 1 << 26  # bytes that are looked at; what is skipped as a whole does not count
_PIECE = 1 << 18  # bytes read at a time

#: Of each type a tensor may have: weights in a block, bytes of a block.
BLOCKS: dict[int, tuple[int, int]] = {
    0: (1, 4),  # F32
    1: (1, 2),  # F16
    2: (32, 18),  # Q4_0
    3: (32, 20),  # Q4_1
    6: (32, 22),  # Q5_0
    7: (32, 24),  # Q5_1
    8: (32, 34),  # Q8_0
    9: (32, 36),  # Q8_1
    10: (256, 84),  # Q2_K
    11: (256, 110),  # Q3_K
    12: (256, 144),  # Q4_K
    13: (256, 176),  # Q5_K
    14: (256, 210),  # Q6_K
    15: (256, 292),  # Q8_K
    16: (256, 66),  # IQ2_XXS
    17: (256, 74),  # IQ2_XS
    18: (256, 98),  # IQ3_XXS
    19: (256, 50),  # IQ1_S
    20: (32, 18),  # IQ4_NL
    21: (256, 110),  # IQ3_S
    22: (256, 82),  # IQ2_S
    23: (256, 136),  # IQ4_XS
    24: (1, 1),  # I8
    25: (1, 2),  # I16
    26: (1, 4),  # I32
    27: (1, 8),  # I64
    28: (1, 8),  # F64
    29: (256, 56),  # IQ1_M
    30: (1, 2),  # BF16
    34: (256, 54),  # TQ1_0
    35: (256, 66),  # TQ2_0
    39: (32, 17),  # MXFP4
    40: (64, 36),  # NVFP4
    41: (128, 18),  # Q1_0
    42: (64, 18),  # Q2_0
}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as the header describes it. `offset` counts from the first tensor's data, `at` is where in the
    file the number of its dimensions stands; dimensions, type and offset follow."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int
    at: int

    @property
    def size(self) -> int:
        """Bytes of its data."""
        weights, size = BLOCKS[self.kind]
        return math.prod(self.dims) // weights * size


@dataclass(frozen=True, slots=True)
class Layout:
    """Where in a file things are: of each key the type of its value and where the value stands, and every
    tensor; their descriptions stand from `tensors_at` to `tensors_end`, their data begin at `data_at`.
    The file has `file_bytes`."""

    values: dict[str, Value]
    places: dict[str, tuple[int, int]]
    tensors: tuple[Tensor, ...]
    alignment: int
    tensors_at: int
    tensors_end: int
    data_at: int
    file_bytes: int


def read_layout(path: Path) -> Layout:
    """What the header of the file at `path` says; values that are too long to be of use here are None.

    Raises ModelError when the header is damaged or promises tensors that the file does not hold.
    """
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise ModelError(f"{path}: the file is empty", hint="fetch it again")
            return _Header(path, file.fileno(), size).read()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}", hint="check that you may read it") from error


class _Header:
    """A cursor over a GGUF header that never believes a length before it has seen the bytes."""

    def __init__(self, path: Path, file: int, size: int) -> None:
        self._path, self._file, self._size, self._at = path, file, size, 0
        self._piece, self._piece_at = b"", 0
        self._left_to_read = _MOST_READ

    def read(self) -> Layout:
        if self._bytes(0, min(4, self._size)) != b"GGUF":
            raise ModelError(f"{self._path}: not a GGUF file", hint="models end in .gguf and begin with GGUF")
        self._at = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise ModelError(
                f"{self._path}: GGUF version {version}, this reads 2 and 3",
                hint="fetch a file made for current versions of llama.cpp",
            )
        n_tensors, n_keys = self._scalar("Q"), self._scalar("Q")
        values: dict[str, Value] = {}
        places: dict[str, tuple[int, int]] = {}
        # The least a key takes is a name of one letter, its type and a byte.
        for _ in range(self._plausible(n_keys, "keys", 14, _MOST_KEYS)):
            key = self._name("a key")
            kind = int(self._scalar("I"))
            places[key] = kind, self._at
            values[key] = self._value(kind)
        tensors_at = self._at
        count = self._plausible(n_tensors, "tensors", 25, _MOST_TENSORS)
        tensors = tuple(self._tensor() for _ in range(count))
        align = values.get("general.alignment")
        align = align if isinstance(align, int) and align > 0 else _ALIGNMENT
        data_at = -(-self._at // align) * align
        layout = Layout(values, places, tensors, align, tensors_at, self._at, data_at, self._size)
        return self._checked(layout)

    def _checked(self, layout: Layout) -> Layout:
        """The layout, if the data of every tensor lies inside the file."""
        end = max((tensor.offset + tensor.size for tensor in layout.tensors), default=0)
        missing = layout.data_at + end - layout.file_bytes if layout.tensors else 0
        if missing > 0:
            raise ModelError(
                f"{self._path}: {missing:,} bytes are missing at its end", hint="fetch it again, to the end"
            )
        return layout

    def _tensor(self) -> Tensor:
        """Reads one tensor's description."""
        name, at = self._name("a tensor"), self._at
        n_dims = int(self._scalar("I"))
        if n_dims > _MAX_DIMS:
            raise self._broken(f"claims {n_dims} dimensions for {name}")
        dims = tuple(int(self._scalar("Q")) for _ in range(n_dims))
        kind, offset = int(self._scalar("I")), int(self._scalar("Q"))
        if kind not in BLOCKS:
            raise ModelError(
                f"{self._path}: {name} is of type {kind}, which this version does not know",
                hint="fetch another quantisation, or update s2chat",
            )
        weights = BLOCKS[kind][0]
        if dims and dims[0] % weights:
            raise self._broken(f"has rows of {dims[0]} weights in {name}, no multiple of {weights}")
        return Tensor(name, dims, kind, offset, at)

    def _value(self, kind: int) -> Value:
        if kind in SCALARS:
            return self._scalar(SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind == ARRAY:
            return self._array()
        raise self._broken(f"has a value of unknown type {kind}")

    def _array(self) -> Value:
        kind, count = int(self._scalar("I")), int(self._scalar("Q"))
        if kind == ARRAY:
            raise self._broken("has an array of arrays, which nobody writes")
        if kind in SCALARS:
            width = struct.calcsize("<" + SCALARS[kind])
            self._need(count * width)
            if count > _KEEP_ITEMS:
                self._at += count * width
                return None
        elif self._plausible(count, "items in an array", 8) > _KEEP_ITEMS:  # 8 bytes of length each
            self._skip_strings(count)
            return None
        items = (self._value(kind) for _ in range(count))
        return tuple(item for item in items if item is not None and not isinstance(item, tuple))

    def _skip_strings(self, count: int) -> None:
        at, unpack = self._at, struct.Struct("<Q").unpack_from
        end = min(self._size, at + self._left_to_read)
        piece, start, last = b"", at, -1  # where the piece begins, and where in the file its last length may
        for _ in range(count):
            if at + 8 > end:
                break
            if at > last:
                piece, start = self._bytes(at, min(_PIECE, end - at)), at
                last = at + len(piece) - 8
            at += 8 + unpack(piece, at - start)[0]
        else:
            if at <= end:
                self._read(at - self._at)
                return
        self._need(end + 1 - self._at)  # the file's end, if it is that
        self._read(end + 1 - self._at)

    def _name(self, what: str) -> str:
        length = int(self._scalar("Q"))
        if not 0 < length <= _NAME_BYTES:
            raise self._broken(f"has {what} with a name of {length} bytes")
        return self._text(length)

    def _string(self) -> str | None:
        length = int(self._scalar("Q"))
        if length <= _KEEP_BYTES:
            return self._text(length)
        self._need(length)
        self._at += length
        return None

    def _text(self, length: int) -> str:
        start = self._at
        self._read(length)
        return self._bytes(start, length).decode("utf-8", "replace")

    def _scalar(self, code: str) -> int:
        start, width = self._at, struct.calcsize("<" + code)
        self._read(width)
        value: int = struct.unpack("<" + code, self._bytes(start, width))[0]
        return value

    def _bytes(self, at: int, count: int) -> bytes:
        """Of the file, which is known to hold them; raises OSError when they cannot be read."""
        begin = at - self._piece_at
        if begin < 0 or begin + count > len(self._piece):
            self._piece, self._piece_at, begin = self._fetched(at, max(count, _PIECE)), at, 0
        found = self._piece[begin : begin + count]
        if len(found) < count:  # it was cut since it was opened
            raise self._broken("ends inside its header")
        return found

    def _fetched(self, at: int, count: int) -> bytes:
        """As many bytes as there are, `count` at most: one read may give fewer than asked for."""
        pieces, end = [], at + count
        while at < end and (data := os.pread(self._file, end - at, at)):
            pieces.append(data)
            at += len(data)
        return b"".join(pieces)

    def _read(self, count: int) -> None:
        """Steps over bytes that are looked at."""
        self._need(count)
        self._left_to_read -= count
        if self._left_to_read < 0:
            raise self._broken(f"has a header of more than {_MOST_READ >> 20} MiB")
        self._at += count

    def _plausible(self, count: int, what: str, bytes_each: int, most: int = 1 << 62) -> int:
        """`count`, if the rest of the file could hold that many."""
        if count > min(self._left // bytes_each, most):
            raise self._broken(f"claims {count} {what}")
        return count

    @property
    def _left(self) -> int:
        return self._size - self._at

    def _need(self, count: int) -> None:
        if count > self._left:
            raise self._broken("ends inside its header")

    def _broken(self, what: str) -> ModelError:
        return ModelError(f"{self._path}: damaged, it {what}", hint="fetch it again")
