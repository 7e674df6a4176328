"""What this machine has, as far as the engine's limits go: cores and memory, cgroups included."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_NO_LIMIT = 1 << 62  # cgroup v1 writes a number near 2^63 for "none"


@dataclass(frozen=True, slots=True)
class Device:
    """`cores`: physical cores this process may use, whole ones of a quota. Memory in bytes."""

    cores: int
    memory_bytes: int
    available_bytes: int
    arch: str


def detect(root: Path = Path("/")) -> Device:
    """Reads the machine's figures. A figure that cannot be read is left out of the minimum, never guessed."""
    memory = psutil.virtual_memory()
    limits = [limit for limit, _ in _memory_limits(root)]
    rooms = [max(0, limit - used) for limit, used in _memory_limits(root)]
    return Device(
        cores=max(1, min([_physical_cores(), *_quota_cores(root)])),
        memory_bytes=min([memory.total, *limits]),
        available_bytes=min([memory.available, *rooms]),
        arch=os.uname().machine,
    )


def _physical_cores() -> int:
    """Cores behind the CPUs this process may run on; hyper-threads add nothing to a memory-bound decode."""
    allowed = len(os.sched_getaffinity(0))
    physical = psutil.cpu_count(logical=False) or allowed
    logical = psutil.cpu_count(logical=True) or allowed
    return max(1, min(allowed, round(allowed * physical / logical)))


def _quota_cores(root: Path) -> Iterator[int]:
    """Whole cores of each CPU quota above this process, cgroup v2 and v1."""
    for group in _groups(root, "cpu"):
        quota = _words(group / "cpu.max")
        if len(quota) == 2 and quota[0] != "max":
            yield max(1, int(quota[0]) // max(1, int(quota[1])))
        quota, period = _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us")
        if quota and period and int(quota[0]) > 0:
            yield max(1, int(quota[0]) // max(1, int(period[0])))


def _memory_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, unreclaimable use) in bytes of each memory cgroup above this process."""
    for group in _groups(root, "memory"):
        stat = dict(line.split() for line in _lines(group / "memory.stat"))
        for limit_name, used_name, cache_keys in (
            ("memory.max", "memory.current", ("inactive_file", "slab_reclaimable")),
            ("memory.high", "memory.current", ("inactive_file", "slab_reclaimable")),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file",)),
        ):
            limit, used = _words(group / limit_name), _words(group / used_name)
            if limit and used and limit[0].isdigit() and int(limit[0]) < _NO_LIMIT:
                cache = sum(int(stat.get(key, 0)) for key in cache_keys)
                yield int(limit[0]), max(0, int(used[0]) - cache)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and all its ancestors."""
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        mount = root / "sys/fs/cgroup"
        if controllers:
            if controller not in controllers.split(","):
                continue
            mount = mount / controller
        group = mount / path.lstrip("/")
        while True:
            yield group
            if group == mount or mount not in group.parents:
                break
            group = group.parent


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _words(path: Path) -> list[str]:
    lines = _lines(path)
    return lines[0].split() if lines else []
