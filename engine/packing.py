"""Makes packs, and removes them.

A pack grows under another name beside its place. Killed or cancelled, it goes on from there: the records
that are there are read and compared with their digests first. On a full disk it is removed, because nothing
works well on a full disk.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from engine.errors import Busy, Cancelled, ModelError, S2Error
from engine.experts import catalogue_of
from engine.machine.disk import free_bytes
from engine.model import files_of
from engine.pack import (
    DIGEST_BYTES,
    PAGE,
    Blueprint,
    Digests,
    Progress,
    Span,
    forget,
    padded,
    part_of,
    places,
    records,
    why_not,
)
from engine.size import size

_FLUSH_BYTES = 64 << 20  # written before the disk is waited for: what the page cache holds of it
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Packing:
    """The pack of one model, to be made at `place`; `found` is where a good one is already.

    Raises ModelError for a model that has no experts or cannot be read.
    """

    def __init__(self, model: Path) -> None:
        self._model = model
        catalogue = catalogue_of(model)
        if not catalogue.tensors:
            raise ModelError(f"{model}: it has no experts to pack", hint="a dense model needs no pack")
        self.blueprint = Blueprint.of(catalogue)
        possible = places(catalogue.files[0])
        good = (place for place in possible if place.is_file() and not why_not(place, self.blueprint))
        self.found = next(good, None)
        beside = possible[0]
        self.place = beside if os.access(beside.parent, os.W_OK | os.X_OK) else possible[-1]

    @property
    def size(self) -> int:
        """Bytes of the whole pack."""
        return self.blueprint.size

    @property
    def begun(self) -> int:
        """Bytes an earlier run left."""
        part = part_of(self.place)
        return part.stat().st_blocks * 512 if part.is_file() else 0

    @property
    def replaced(self) -> int:
        """Bytes of the pack that is no good and gives way."""
        return self.place.stat().st_size if self.place.is_file() and self.place != self.found else 0

    @property
    def free(self) -> int | None:
        """Bytes free where it is to be; None where nobody counts them."""
        return free_bytes(self.place.parent)

    def check_room(self) -> None:
        """Raises S2Error when the pack does not fit on the disk."""
        needed = self.size - min(self.size, self.begun)
        if self.free is None:
            return
        free = self.free + self.replaced
        if needed > free:
            raise S2Error(
                f"{self.place.parent} has no room for the pack: {size(needed)} needed, {size(free)} free",
                hint=f"make room for {needed - free:,} bytes more",
            )

    def write(self, progress: Progress) -> Path:
        """Makes the pack and returns its path; `progress` may raise Cancelled.

        Raises S2Error, Busy when another process makes it, Cancelled when interrupted.
        """
        if self.found is not None:
            return self.found
        part = part_of(self.place)
        try:
            self.place.parent.mkdir(parents=True, exist_ok=True)
            self.check_room()
            with _ours(part) as file:
                if self.place.is_file():
                    if not why_not(self.place, self.blueprint):  # another process made it just now
                        part.unlink()
                        return self.place
                    self.place.unlink()
                _Writer(self.blueprint, file, progress).write()
                self._check_unchanged(part)
                part.replace(self.place)
            _sync_folder(self.place.parent)
        except (KeyboardInterrupt, Cancelled):
            raise Cancelled(
                f"{self.place}: stopped",
                hint="`s2chat models pack` goes on from there, `s2chat models rm` removes what there is",
            ) from None
        except OSError as error:
            raise self._failure(error, part) from error
        return self.place

    def _check_unchanged(self, part: Path) -> None:
        if Blueprint.of(catalogue_of(self._model)).index != self.blueprint.index:
            part.unlink()
            raise S2Error(f"{self._model} was changed while it was packed", hint="start again")

    def _failure(self, error: OSError, part: Path) -> S2Error:
        if error.errno not in _NO_ROOM:
            return S2Error(f"{self.place}: {error.strerror or error}")
        part.unlink(missing_ok=True)
        if error.errno == errno.EFBIG:
            return S2Error(
                f"{self.place}: files of {size(self.size)} are not allowed there, nothing was kept",
                hint="move the model to another file system",
            )
        return S2Error(
            f"{self.place}: the disk filled up meanwhile, what was written is removed",
            hint=f"make room for {size(max(0, self.size - (self.free or 0)))} more and start again",
        )


def remove(model: Path) -> list[tuple[Path, int]]:
    """Removes the packs of the model at `model`, unfinished ones too, never the model; what was removed and
    how many bytes it had. The model may be gone already. Raises Busy while a pack is being made."""
    gone = []
    try:
        first = files_of(model)[0]
    except ModelError:
        first = model
    for pack in places(first):
        for file in (part_of(pack), pack):
            try:
                if not file.is_file():
                    continue
                held = file.stat().st_size
                if file != pack:
                    with _ours(file):
                        file.unlink()
                else:
                    file.unlink()
            except OSError as error:
                raise S2Error(f"{file}: {error.strerror or error}", hint="remove it yourself") from error
            gone.append((file, held))
    return gone


class _Writer:
    """Fills the file of a pack."""

    def __init__(self, blueprint: Blueprint, file: BinaryIO, progress: Progress) -> None:
        self._blueprint, self._handle, self._progress = blueprint, file.fileno(), progress
        self._buffer = memoryview(bytearray(max(span.size for span in blueprint.spans())))
        self._flushed: Future[None] | None = None
        self._flush_from = 0

    def write(self) -> None:
        """Everything, on the disk."""
        done = self._resume()
        with ExitStack() as stack:
            sources = [_opened(file, stack) for file in self._blueprint.source.files]
            pool = stack.enter_context(ThreadPoolExecutor(2))
            digests = Digests()
            for span in self._blueprint.spans():
                if span.number + span.count <= done:
                    continue
                data = self._read(span, sources)
                hashed = pool.submit(digests.feed, span, data)  # while it is written
                _write_all(self._handle, data, span.at)
                entry = self._blueprint.table_at + span.number * DIGEST_BYTES
                _write_all(self._handle, memoryview(hashed.result()), entry)
                self._flush(pool, span.at + span.size)
                self._progress("writing", span.at + span.size, self._blueprint.size)
        self._finish()

    def _resume(self) -> int:
        """How many records are there already; with none the file is empty but for its index."""
        blueprint, handle = self._blueprint, self._handle
        done = 0
        if os.pread(handle, len(blueprint.index), PAGE) == blueprint.index:
            for _, wanted, got in records(handle, blueprint, self._progress):
                if wanted != got:
                    break
                done += 1
        if not done:
            os.ftruncate(handle, 0)
            os.ftruncate(handle, blueprint.table_at + padded(blueprint.n_records * DIGEST_BYTES))
            _write_all(handle, memoryview(blueprint.index), PAGE)
        return done

    def _read(self, span: Span, sources: list[int]) -> memoryview:
        """The records' bytes as they are to be in the pack."""
        data = self._buffer[: span.size]
        for stack, at in span.layer.parts:
            end = at + stack.expert_bytes
            low, high, rest = (min(max(place, span.start), span.stop) for place in (at, end, padded(end)))
            pieces = [
                data[index * span.each + low - span.start : index * span.each + high - span.start]
                for index in range(span.count)
            ]
            for index in range(span.count if rest > high else 0):
                base = index * span.each - span.start
                data[base + high : base + rest] = bytes(rest - high)
            if high > low:
                start = stack.offset + span.expert * stack.stride + low - at
                _read_all(sources[stack.file], pieces, start, self._blueprint.source.files[stack.file])
        return data

    def _flush(self, pool: ThreadPoolExecutor, upto: int) -> None:
        """Has the disk take what was written, one stretch behind, and the page cache forget it."""
        if upto - self._flush_from < _FLUSH_BYTES:
            return
        if self._flushed is not None:
            self._flushed.result()
        self._flushed = pool.submit(_flush, self._handle, self._flush_from, upto)
        self._flush_from = upto

    def _finish(self) -> None:
        """The first page comes last: without it this is no pack."""
        if self._flushed is not None:
            self._flushed.result()
        blueprint, handle = self._blueprint, self._handle
        os.ftruncate(handle, blueprint.size)
        os.fsync(handle)
        table = os.pread(handle, blueprint.n_records * DIGEST_BYTES, blueprint.table_at)
        _write_all(handle, memoryview(blueprint.head(table)), 0)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def _ours(part: Path) -> Iterator[BinaryIO]:
    """The unfinished file, ours alone; raises Busy when it is another's."""
    with open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"{part} is being written by another process") from None
        if not (part.exists() and os.path.samestat(part.stat(), os.fstat(file.fileno()))):
            raise Busy(f"{part} was finished by another process just now", hint="try again")
        yield file


def _opened(file: Path, stack: ExitStack) -> int:
    try:
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ModelError(f"{file}: {error.strerror or error}", hint="check that you may read it") from error
    stack.callback(os.close, handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return handle


def _read_all(handle: int, pieces: list[memoryview], at: int, file: Path) -> None:
    """Fills `pieces` with what stands in the file from `at` on; the page cache forgets it."""
    start = at
    while pieces:
        try:
            got = os.preadv(handle, pieces, at)
        except OSError as error:
            raise ModelError(f"{file}: {error.strerror or error}") from error
        if got == 0:
            raise ModelError(f"{file}: it ends at {at:,}, and did not before", hint="fetch it again")
        at += got
        while pieces and got >= len(pieces[0]):
            got -= len(pieces.pop(0))
        if pieces:
            pieces[0] = pieces[0][got:]
    forget(handle, start, at)


def _write_all(handle: int, data: memoryview, at: int) -> None:
    while data:
        done = os.pwrite(handle, data, at)
        data, at = data[done:], at + done


def _flush(handle: int, start: int, stop: int) -> None:
    os.fdatasync(handle)
    forget(handle, start, stop)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
