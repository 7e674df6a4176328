"""Counters of processors, disks and one process: what was used since they began. Two looks make a rate."""

from __future__ import annotations

import os
from pathlib import Path

from engine.machine.reading import Reading, read, text_of

_FIRST = "the first look: a rate needs two"
_SECTOR = 512  # in this file, whatever the disk's own are
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def read_ticks(root: Path) -> Reading:
    """(busy, all) ticks of all processors together. Those a hypervisor kept were busy with others."""

    def ticks() -> tuple[int, int]:
        words = text_of(root, "proc/stat").split("\n")[0].split()
        if words[:1] != ["cpu"]:
            raise ValueError("no line of all processors")
        counts = [int(word) for word in words[1:9]]
        return sum(counts) - counts[3] - counts[4], sum(counts)

    return read("/proc/stat", ticks)


def read_disk_bytes(root: Path, device: str) -> Reading:
    """Bytes read from the block device `device` so far."""

    def count() -> int:
        for line in text_of(root, "proc/diskstats").splitlines():
            words = line.split()
            if words[2:3] == [device]:
                return int(words[5]) * _SECTOR
        raise FileNotFoundError

    return read(f"/proc/diskstats: {device}", count)


def read_process(root: Path, pid: int) -> dict[str, Reading]:
    """Of process `pid`: "memory" in bytes, "seconds" of processors and "bytes_read" from disks so far."""
    place = f"proc/{pid}"

    def seconds() -> float:
        # The program's name stands in brackets and may hold anything.
        words = text_of(root, f"{place}/stat").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / _TICKS

    def bytes_read() -> int:
        rows = dict(line.split(": ") for line in text_of(root, f"{place}/io").splitlines())
        return int(rows["read_bytes"])

    return {
        "memory": read(
            f"/{place}/statm", lambda: int(text_of(root, f"{place}/statm").split()[1]) * _PAGE or None
        ),
        "seconds": read(f"/{place}/stat", seconds),
        "bytes_read": read(f"/{place}/io", bytes_read),
    }


class Rates:
    """What counters grew by per second since the last look at them."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}

    def of(self, name: str, count: Reading, now_s: float, most: int = 0) -> Reading:
        """`most`: where the counter begins again at 0; one without starts anew when it falls."""
        if not count.known:
            self._last.pop(name, None)
            return count
        before = self._last.get(name)
        self._last[name] = (count.value, now_s)
        if before is None or now_s <= before[1]:
            return Reading(None, count.source, _FIRST)
        grown = count.value - before[0]
        if grown < 0:
            grown += most
        if grown < 0:
            return Reading(None, count.source, _FIRST)
        return Reading(grown / (now_s - before[1]), count.source)
