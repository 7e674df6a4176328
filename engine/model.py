"""What a GGUF file is, read from its header.

The `gguf` package reads headers too, but takes 1.8 s for a vocabulary of 49 k tokens, which it turns
into one Python object each, and trusts the lengths a file claims. This reader skips what it does not need and
checks every length against the file.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelError

Value = int | float | bool | str | tuple[int | float | bool | str, ...] | None

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_KEEP_ITEMS = 1024  # longer arrays are vocabularies; nothing here asks for them
_SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as its header describes it. `size_bytes` counts every file of a split set."""

    path: Path
    name: str
    arch: str
    size_bytes: int
    n_layer: int
    n_expert: int
    n_expert_used: int
    n_ctx_train: int
    kv_bytes_per_token: int

    @property
    def is_moe(self) -> bool:
        return self.n_expert > 0 and self.n_expert_used > 0


def read_model_info(path: Path) -> ModelInfo:
    """Reads the header of the model at `path`; any file of a split set stands for the set.

    Raises ModelError naming the file and the reason.
    """
    files = _files_of(Path(path))
    header = _read_header(files[0])
    arch = header.get("general.architecture")
    if not isinstance(arch, str) or not arch:
        raise ModelError(f"{files[0]}: no architecture in its header", hint="is this a language model?")
    if _number(header, "split.count", 0) > 1 and len(files) == 1:
        raise ModelError(
            f"{files[0]}: one file of a split set", hint="keep its name NAME-00001-of-0000N.gguf"
        )
    name = header.get("general.name")
    return ModelInfo(
        path=files[0],
        name=name if isinstance(name, str) and name.strip() else files[0].stem,
        arch=arch,
        size_bytes=sum(file.stat().st_size for file in files),
        n_layer=_number(header, f"{arch}.block_count", 0),
        n_expert=_number(header, f"{arch}.expert_count", 0),
        n_expert_used=_number(header, f"{arch}.expert_used_count", 0),
        n_ctx_train=_number(header, f"{arch}.context_length", 0),
        kv_bytes_per_token=_kv_bytes_per_token(header, arch),
    )


def _files_of(path: Path) -> list[Path]:
    """The files of the model that `path` belongs to, in order; each is there."""
    try:
        if not path.exists():
            raise ModelError(f"{path}: no such file", hint="check the path given with -m")
        if not path.is_file():
            raise ModelError(f"{path}: not a file", hint="give the .gguf file itself")
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from error
    match = _SPLIT_NAME.match(path.name)
    if match is None or int(match["count"]) < 2:
        return [path]
    count = int(match["count"])
    files = [path.with_name(f"{match['stem']}-{no:05d}-of-{count:05d}.gguf") for no in range(1, count + 1)]
    for file in files:
        if not file.is_file():
            raise ModelError(f"{file}: missing from its split set of {count}", hint="fetch that file too")
    return files


def _number(header: dict[str, Value], key: str, default: int) -> int:
    """An integer value; the largest where layers differ."""
    value = header.get(key)
    if isinstance(value, tuple):
        numbers = [int(item) for item in value if isinstance(item, (int, float))]
        return max(numbers, default=default)
    return int(value) if isinstance(value, (int, float)) else default


def _kv_bytes_per_token(header: dict[str, Value], arch: str) -> int:
    """Bytes one token takes in an F16 KV cache, all layers."""
    n_head = max(1, _number(header, f"{arch}.attention.head_count", 1))
    n_head_kv = _number(header, f"{arch}.attention.head_count_kv", n_head)
    head = _number(header, f"{arch}.embedding_length", 0) // n_head
    keys = _number(header, f"{arch}.attention.key_length", head)
    values = _number(header, f"{arch}.attention.value_length", head)
    return 2 * n_head_kv * (keys + values) * _number(header, f"{arch}.block_count", 0)


def _read_header(path: Path) -> dict[str, Value]:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            if size == 0:
                raise ModelError(f"{path}: the file is empty", hint="fetch it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Header(path, data).read()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}", hint="check that you may read it") from error


class _Header:
    """A cursor over a GGUF header that never believes a length before it has seen the bytes."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0

    def read(self) -> dict[str, Value]:
        if self._data[:4] != b"GGUF":
            raise ModelError(f"{self._path}: not a GGUF file", hint="models end in .gguf and begin with GGUF")
        self._at = 4
        version = self._scalar("I")
        if version not in (2, 3):
            raise ModelError(f"{self._path}: GGUF version {version}, this reads 2 and 3")
        self._scalar("Q")  # tensor count
        n_keys = self._scalar("Q")
        if n_keys > len(self._data) // 13:  # a key, its type and a value take 13 bytes at least
            raise self._broken(f"claims {n_keys} keys")
        header: dict[str, Value] = {}
        for _ in range(int(n_keys)):
            key = self._string()
            header[key] = self._value(int(self._scalar("I")))
        return header

    def _value(self, kind: int, depth: int = 0) -> Value:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY and depth < 4:
            return self._array(depth)
        raise self._broken(f"has a value of unknown type {kind}")

    def _array(self, depth: int) -> Value:
        kind, count = int(self._scalar("I")), int(self._scalar("Q"))
        if kind in _SCALARS:
            width = struct.calcsize("<" + _SCALARS[kind])
            self._need(count * width)
            if count > _KEEP_ITEMS:
                self._at += count * width
                return None
        elif count > len(self._data) // 8:  # a string or an array is 8 bytes of length at least
            raise self._broken(f"claims an array of {count} items")
        if kind == _STRING and count > _KEEP_ITEMS:
            self._skip_strings(count)
            return None
        items = (self._value(kind, depth + 1) for _ in range(count))
        return tuple(item for item in items if not isinstance(item, tuple) and item is not None)

    def _skip_strings(self, count: int) -> None:
        data, at, end, unpack = self._data, self._at, len(self._data), struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > end:
                raise self._broken("ends inside its header")
            at += 8 + unpack(data, at)[0]
        if at > end:
            raise self._broken("ends inside its header")
        self._at = at

    def _string(self) -> str:
        length = int(self._scalar("Q"))
        self._need(length)
        text = self._data[self._at : self._at + length]
        self._at += length
        return text.decode("utf-8", "replace")

    def _scalar(self, code: str) -> int:
        width = struct.calcsize("<" + code)
        self._need(width)
        value: int = struct.unpack_from("<" + code, self._data, self._at)[0]
        self._at += width
        return value

    def _need(self, count: int) -> None:
        if count > len(self._data) - self._at:
            raise self._broken("ends inside its header")

    def _broken(self, what: str) -> ModelError:
        return ModelError(f"{self._path}: damaged, it {what}", hint="fetch it again")
