"""The disk below the rows: how fast a plain reader gets experts from it, and the copies the kernel keeps."""

from __future__ import annotations

import errno
import itertools
import os
import random
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from engine.errors import ModelError
from engine.experts import Catalogue
from engine.hugepage import huge_page

DEPTH = 16  # reads in flight, as the store has them
PIECE_BYTES = 512 << 10  # and the longest of them
_PAGE = 4096


def drop_cached(files: Iterable[Path]) -> None:
    """Makes the kernel forget what it keeps of `files`; pages that a process maps stay."""
    for file in files:
        handle = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


def disk_bytes() -> int | None:
    """What this process had read from disk so far, mapped files too; None where the kernel does not count."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


class RawReader:
    """Reads experts of a model in random order past the page cache, `DEPTH` pieces at a time.

    What a reader without a store gets from the disk: no slots, no waits, no arithmetic. `direct` is False on
    file systems that have no O_DIRECT; there the kernel's copies are dropped before each measurement.
    """

    def __init__(self, catalogue: Catalogue, seed: int = 0) -> None:
        self._files = catalogue.files
        self._pieces = _pieces(catalogue, seed)
        if not self._pieces:
            raise ModelError(f"{catalogue.files[0]}: it has no experts to read", hint="give an MoE model")
        self.direct = True
        self._lock = threading.Lock()
        self._next = itertools.cycle(self._pieces)
        with ExitStack() as opening:
            self._handles = [self._open(opening, file) for file in self._files]
            self._buffers = [opening.enter_context(huge_page()) for _ in range(DEPTH)]
            self._readers = opening.enter_context(ThreadPoolExecutor(DEPTH))
            self._stack = opening.pop_all()

    def mb_s(self, seconds: float) -> float:
        """Megabytes (10^6) of experts per second, reading for `seconds`."""
        if not self.direct:
            drop_cached(self._files)
        started = time.perf_counter()
        jobs = [self._readers.submit(self._read_until, started + seconds, buffer) for buffer in self._buffers]
        read = sum(job.result() for job in jobs)
        return read / (time.perf_counter() - started) / 1e6

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> RawReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open(self, stack: ExitStack, file: Path) -> int:
        try:
            handle = os.open(file, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise ModelError(f"{file}: {error.strerror}", hint="check that you may read it") from error
            handle, self.direct = os.open(file, os.O_RDONLY), False
        stack.callback(os.close, handle)
        return handle

    def _read_until(self, deadline: float, buffer: memoryview) -> int:
        """Bytes of experts read; whole pages around them come along."""
        total = 0
        while time.perf_counter() < deadline:
            with self._lock:
                file, offset, size = next(self._next)
            start = offset // _PAGE * _PAGE
            whole = -(-(offset + size - start) // _PAGE) * _PAGE
            got = os.preadv(self._handles[file], [buffer[:whole]], start)  # without the GIL
            if got < offset + size - start:
                raise ModelError(f"{self._files[file]}: cut short at {start + got:,} bytes")
            total += size
        return total


def _pieces(catalogue: Catalogue, seed: int) -> list[tuple[int, int, int]]:
    """(file, offset, bytes) of every expert in some order, each cut as the store cuts it."""
    experts = [
        (tensor.file, tensor.offset + index * tensor.stride, tensor.expert_bytes)
        for tensor in catalogue.tensors
        for index in range(tensor.n_expert)
    ]
    random.Random(seed).shuffle(experts)
    return [piece for expert in experts for piece in _cut(*expert)]


def _cut(file: int, offset: int, size: int) -> Iterator[tuple[int, int, int]]:
    for at in range(0, size, PIECE_BYTES):
        yield file, offset + at, min(PIECE_BYTES, size - at)
