"""The expert store of a loaded model: experts in slots under a budget of bytes, the rest read when needed.

The store itself is native (native/s2/store); this is its handle. See the design's "expert store" and S2-MoE,
section 4.2, for what it must do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import ModelError
from engine.experts import Catalogue
from engine.native import llama
from engine.prototypes import Prototype, declare

METHODS = ("auto", "buffered", "direct", "uring", "uring-buffered")  # enum s2_store_method
_TEXT = 1024  # bytes of a message from native code
_FILE_HINT = "check that the file is there"
_LIMIT_HINT = "a limit on address space or threads is in the way: ulimit -v, ulimit -u, vm.overcommit_memory"


class _Tensor(ctypes.Structure):
    """struct s2_store_tensor."""

    _fields_ = [
        ("name", c_char_p),
        ("layer", c_int32),
        ("n_expert", c_int32),
        ("expert_bytes", c_int64),
        ("file", c_int32),
        ("offset", c_int64),
        ("stride", c_int64),
    ]


class _Config(ctypes.Structure):
    """struct s2_store_config."""

    _fields_ = [
        ("files", POINTER(c_char_p)),
        ("n_files", c_int32),
        ("tensors", POINTER(_Tensor)),
        ("n_tensors", c_int32),
        ("bytes", c_int64),
        ("method", c_int32),
        ("depth", c_int32),
        ("sync", c_bool),
    ]


@dataclass(frozen=True, slots=True)
class StoreStats:
    """struct s2_store_stats: figures since the store was opened, except the first four, which are of now.

    `asked` counts distinct (layer, expert) of each pass; `hits` of these were in memory when the layer asked,
    `late` were on their way, which is a miss. `stall_ns` is time in which a pass stood waiting for reads.
    """

    bytes: int
    n_slots: int
    n_resident: int
    n_experts: int
    passes: int
    asked: int
    hits: int
    late: int
    reads: int
    bytes_read: int
    bytes_prefetched: int
    prefetched: int
    prefetch_used: int
    evicted: int
    stall_ns: int


_Stats = c_int64 * len(fields(StoreStats))  # struct s2_store_stats has no other fields


_FUNCTIONS: dict[str, Prototype] = {
    "s2_store_new": (c_void_p, [POINTER(_Config), c_char_p, c_size_t]),
    "s2_store_free": (None, [c_void_p]),
    "s2_store_attach": (None, [c_void_p]),
    "s2_store_bytes_min": (c_int64, [c_void_p]),
    "s2_store_bytes_all": (c_int64, [c_void_p]),
    "s2_store_resize": (c_int64, [c_void_p, c_int64]),
    "s2_store_warm": (None, [c_void_p]),
    "s2_store_n_layers": (c_int32, [c_void_p]),
    "s2_store_n_expert": (c_int32, [c_void_p]),
    "s2_store_get_heat": (None, [c_void_p, POINTER(c_float)]),
    "s2_store_set_heat": (None, [c_void_p, POINTER(c_float)]),
    "s2_store_end_pass": (None, [c_void_p]),
    "s2_store_set_prefetch": (None, [c_void_p, c_bool]),
    "s2_store_set_drafting": (None, [c_void_p, c_bool]),
    "s2_store_is_whole": (c_bool, [c_void_p]),
    "s2_store_where": (None, [c_void_p, c_void_p]),
    "s2_store_asked": (None, [c_void_p, POINTER(c_int64)]),
    "s2_store_credit": (None, [c_void_p, c_int32]),
    "s2_store_get_stats": (None, [c_void_p, POINTER(c_int64)]),
    "s2_store_method_reason": (c_char_p, [c_void_p]),
    "s2_store_method": (c_int32, [c_void_p]),
    "s2_store_take_fault": (c_bool, [c_void_p, c_char_p, c_size_t]),
    "s2_store_torment": (None, [c_void_p, c_uint64, c_int32, c_int32, c_int32]),
}


def _stamp(file: Path) -> tuple[int, int] | None:
    """Size and time; None when it cannot be looked at."""
    try:
        about = file.stat()
    except OSError:
        return None
    return about.st_size, about.st_mtime_ns


def _library() -> Any:
    lib = llama()._lib
    declare(lib, _FUNCTIONS)
    return lib


class Store:
    """Where the experts of one model live. It must outlive the model; the decode thread owns it, but `resize`
    and `stats` may be called from any thread."""

    def __init__(self, lib: Any, handle: int, catalogue: Catalogue) -> None:
        self._lib, self._handle, self.catalogue = lib, c_void_p(handle), catalogue
        self._opened = [_stamp(file) for file in catalogue.files]

    @classmethod
    def open(
        cls,
        catalogue: Catalogue,
        n_bytes: int = 0,
        *,
        method: str = "auto",
        depth: int = 0,
        sync: bool = False,
    ) -> Store:
        """A store for the experts in `catalogue` with `n_bytes` of slots, or the least that work.

        `sync` turns prefetch and overlap off, for comparison. Raises ModelError when a file cannot be opened.
        """
        lib = _library()
        files = (c_char_p * len(catalogue.files))(*(os.fsencode(file) for file in catalogue.files))
        tensors = (_Tensor * len(catalogue.tensors))(
            *(
                _Tensor(t.name.encode(), t.layer, t.n_expert, t.expert_bytes, t.file, t.offset, t.stride)
                for t in catalogue.tensors
            )
        )
        config = _Config(
            files, len(files), tensors, len(tensors), n_bytes, METHODS.index(method), depth, sync
        )
        error = ctypes.create_string_buffer(_TEXT)
        handle = lib.s2_store_new(ctypes.byref(config), error, _TEXT)
        if not handle:
            reason = error.value.decode("utf-8", "replace")
            of_a_file = any(
                reason.startswith(os.fsencode(f).decode("utf-8", "replace")) for f in catalogue.files
            )
            raise ModelError(reason, hint=_FILE_HINT if of_a_file else _LIMIT_HINT)
        return cls(lib, handle, catalogue)

    @contextlib.contextmanager
    def loading(self) -> Iterator[None]:
        """A model loaded inside keeps its experts here."""
        self._lib.s2_store_attach(self._handle)
        try:
            yield
        finally:
            self._lib.s2_store_attach(None)

    @property
    def bytes_min(self) -> int:
        """The fewest bytes of slots with which any pass works."""
        return int(self._lib.s2_store_bytes_min(self._handle))

    @property
    def bytes_all(self) -> int:
        """The bytes of slots with which every expert stays in memory."""
        return int(self._lib.s2_store_bytes_all(self._handle))

    @property
    def method(self) -> str:
        """How it reads, one of METHODS but "auto"."""
        return METHODS[self._lib.s2_store_method(self._handle)]

    @property
    def reason(self) -> str:
        """How it reads and why, in one line."""
        return str(self._lib.s2_store_method_reason(self._handle).decode("utf-8", "replace"))

    @property
    def refused(self) -> bool:
        """Whether reads past the page cache do not work here: for a moment what is read is there twice."""
        said = ("O_DIRECT is refused", "gave other bytes")
        return self.method in ("buffered", "uring-buffered") and any(words in self.reason for words in said)

    @property
    def outdated(self) -> bool:
        """Whether a file was changed since it was opened: nothing can be read from it any more."""
        return self._opened != [_stamp(file) for file in self.catalogue.files]

    @property
    def handle(self) -> c_void_p:
        """For native code that asks the store itself."""
        return self._handle

    @property
    def n_layers(self) -> int:
        """Layers with experts."""
        return int(self._lib.s2_store_n_layers(self._handle))

    @property
    def n_expert(self) -> int:
        """Experts of the largest of them."""
        return int(self._lib.s2_store_n_expert(self._handle))

    @property
    def is_whole(self) -> bool:
        """Whether every expert is in memory and stays there."""
        return bool(self._lib.s2_store_is_whole(self._handle))

    def where(self) -> npt.NDArray[np.uint8]:
        """Where each expert is now, U8 [layers, experts]: 0 on disk, 1 on its way, 2 in memory."""
        where = np.empty(self._shape, np.uint8)
        self._lib.s2_store_where(self._handle, where.ctypes.data)
        return where

    def asked(self) -> tuple[int, int, int]:
        """Counts of `stats` that change with every pass: experts asked for, hits, late."""
        counts = (c_int64 * 3)()
        self._lib.s2_store_asked(self._handle, counts)
        return counts[0], counts[1], counts[2]

    def set_prefetch(self, on: bool) -> None:
        """Whether experts are read before they are asked for, from now on; the results are the same."""
        self._lib.s2_store_set_prefetch(self._handle, on)

    def set_drafting(self, on: bool) -> None:
        """Passes that follow are drafts: neither counted nor learned from, and what was announced for the
        verify pass is not given up by them."""
        self._lib.s2_store_set_drafting(self._handle, on)

    def resize(self, n_bytes: int) -> int:
        """Gives slots back to the system, or takes more; returns the bytes in use, which during a pass may be
        more than asked for until it is over."""
        return int(self._lib.s2_store_resize(self._handle, n_bytes))

    def warm(self) -> None:
        """Fills free slots in the background, hottest experts first."""
        self._lib.s2_store_warm(self._handle)

    def end_pass(self) -> None:
        """A decode pass is over, whatever became of it."""
        self._lib.s2_store_end_pass(self._handle)

    def credit(self, rows: int) -> None:
        """Of the last pass the first `rows` tokens were accepted."""
        self._lib.s2_store_credit(self._handle, rows)

    def take_fault(self) -> str | None:
        """Why the last pass was stopped by a read that failed; None when it was not."""
        text = ctypes.create_string_buffer(_TEXT)
        if not self._lib.s2_store_take_fault(self._handle, text, _TEXT):
            return None
        return text.value.decode("utf-8", "replace")

    def stats(self) -> StoreStats:
        """The figures up to now."""
        stats = _Stats()
        self._lib.s2_store_get_stats(self._handle, stats)  # looked at for every block: kept cheap
        return StoreStats(*stats)

    def heat(self) -> npt.NDArray[np.float32]:
        """How much each expert is used: F32 [layers with experts, experts].

        While every one is in memory, one accepted pass in 16 is counted: enough for the next start.
        """
        heat = np.zeros(self._shape, np.float32)
        self._lib.s2_store_get_heat(self._handle, heat.ctypes.data_as(POINTER(c_float)))
        return heat

    def set_heat(self, heat: npt.NDArray[np.float32]) -> None:
        """Starts from `heat` of an earlier run; one of another shape is ignored."""
        if heat.shape == self._shape:
            heat = np.ascontiguousarray(heat, np.float32)
            self._lib.s2_store_set_heat(self._handle, heat.ctypes.data_as(POINTER(c_float)))

    def torment(self, seed: int, *, max_us: int = 0, fail_each: int = 0, evictions: int = 0) -> None:
        """For tests: holds reads back by up to `max_us`, fails each n-th one, gives random experts up."""
        self._lib.s2_store_torment(self._handle, seed, max_us, fail_each, evictions)

    def close(self) -> None:
        """Waits for reads in flight and frees the slots. The model must be gone."""
        if self._handle.value is not None:
            self._lib.s2_store_free(self._handle)
            self._handle = c_void_p(None)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.n_layers, self.n_expert
