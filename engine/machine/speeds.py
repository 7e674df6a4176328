"""How fast disk and memory of this machine are: measured once, and remembered in the cache folder."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import mmap
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.hugepage import huge_page
from engine.machine.cpu import read_cpu, usable_cores
from engine.machine.disk import disk_of
from engine.machine.reading import Reading, read

READ_BYTES = 1 << 20  # about an expert's record
_READERS = 8
_READ_S = 0.4
_LEAST_FILE = 32 << 20
_ALIGN = 4096
_COPY_BYTES = 16 << 20  # per thread and direction: together beyond most caches
_COPIES = 10
_DIRECT = getattr(os, "O_DIRECT", 0)


def remembered(root: Path, place: Path, cache: Path) -> dict[str, Reading]:
    """What was measured here before, bytes per second; costs one small file. Unknown is an error."""
    known = _load(cache)
    return {
        name: Reading(known.get(key), f"measured, {cache}", "" if key in known else "not measured yet")
        for name, key in _keys(root, place).items()
    }


def measure(
    root: Path, place: Path, cache: Path, *, again: bool = False, disk_only: bool = False
) -> dict[str, Reading]:
    """Measures what is not remembered, or all of it `again`, within about a second, and remembers it.

    The best figure counts: other programs can only make one worse. `place` is a file of `_LEAST_FILE`
    or more whose disk is meant. Nothing is written but the cache. `disk_only`: takes a few MiB of memory
    instead of hundreds.
    """
    readings = remembered(root, place, cache)
    probes: dict[str, Callable[[], int]] = {
        "disk.read_speed": lambda: read_speed(place),
        "memory.speed": lambda: copy_speed(usable_cores(root)),
    }
    if disk_only:
        del probes["memory.speed"]
    keys = _keys(root, place)
    for name, probe in probes.items():
        before = readings.get(name, Reading())
        if name in keys and (again or not before.known):
            now = read(f"measured, {cache}", probe)
            readings[name] = max(now, before, key=lambda reading: reading.value or -1)
    _save(cache, {key: readings[name].value for name, key in keys.items() if readings[name].known})
    return readings


def read_speed(file: Path) -> int:
    """Bytes per second of random reads of READ_BYTES, eight at a time, past the page cache.

    Raises OSError where the file is too small or the page cache cannot be passed by.
    """
    count = file.stat().st_size // READ_BYTES
    if file.stat().st_size < _LEAST_FILE:
        raise OSError(f"{file.name} is too small to measure a disk with")
    handle = os.open(file, os.O_RDONLY | _DIRECT)
    try:
        deadline = time.monotonic() + _READ_S
        order = random.sample(
            range(count), count
        )  # each once: a second read may come from the drive's memory
        parts = [order[reader::_READERS] for reader in range(_READERS)]
        with ThreadPoolExecutor(_READERS) as pool:
            started = time.monotonic()
            done = sum(pool.map(lambda part: _read_part(handle, part, deadline), parts))
            seconds = time.monotonic() - started
    finally:
        os.close(handle)
    if not done:
        raise OSError("nothing was read in time")
    return round(done / seconds)


def _read_part(handle: int, part: list[int], deadline: float) -> int:
    done = 0
    with huge_page() as page:
        for index in part:
            if time.monotonic() > deadline:
                break
            done += os.preadv(handle, [page[:READ_BYTES]], index * READ_BYTES)
    return done


def copy_speed(threads: int) -> int:
    """Bytes per second that `threads` threads read and write together while they copy."""
    # A copy reads and writes; both count, as a decode that only reads uses the same wires.
    blocks = [(mmap.mmap(-1, _COPY_BYTES), mmap.mmap(-1, _COPY_BYTES)) for _ in range(min(threads, 8))]

    def copy(pair: tuple[mmap.mmap, mmap.mmap], times: int) -> float:
        to, source = (ctypes.addressof(ctypes.c_char.from_buffer(block)) for block in pair)
        started = time.thread_time()  # what others take of this core does not count
        for _ in range(times):
            ctypes.memmove(to, source, _COPY_BYTES)  # lets go of the interpreter's lock meanwhile
        return time.thread_time() - started

    with ThreadPoolExecutor(len(blocks)) as pool:
        list(pool.map(lambda pair: copy(pair, 1), blocks))  # the first touch of each page does not count
        seconds = list(pool.map(lambda pair: copy(pair, _COPIES), blocks))
    return round(sum(2 * _COPIES * _COPY_BYTES / spent for spent in seconds))


def _keys(root: Path, place: Path) -> dict[str, str]:
    """Under which names figures of this machine and of this disk are remembered."""
    keys = {}
    cpu = read_cpu(root)
    keys["memory.speed"] = _key("memory", cpu["cpu.model"].value, usable_cores(root))
    with contextlib.suppress(OSError):
        disk = disk_of(root, place)
        size = (root / "sys/class/block" / disk.device / "size") if disk.device else None
        sectors = size.read_text().strip() if size is not None and size.exists() else ""
        keys["disk.read_speed"] = _key("disk", disk.filesystem, disk.device, disk.model, sectors)
    return keys


def _key(*parts: object) -> str:
    return f"{parts[0]}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}"


def _load(cache: Path) -> dict[str, int]:
    try:
        found = json.loads(cache.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, int) and value > 0}


def _save(cache: Path, figures: dict[str, int]) -> None:
    """Figures that cannot be remembered are measured again next time."""
    known = _load(cache)
    if all(known.get(key) == value for key, value in figures.items()):
        return
    with contextlib.suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = cache.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({**known, **figures}))
        draft.replace(cache)
