"""What the cgroups above this process allow it, version 1 and 2."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_NO_LIMIT = 1 << 62  # cgroup v1 writes a number near 2^63 for "none"

# What the kernel's own MemAvailable counts as free: file pages, active ones included, and slabs it can drop.
_CACHE_V2 = ("inactive_file", "active_file", "slab_reclaimable")
_CACHE_V1 = ("total_inactive_file", "total_active_file")
_MEMORY_FILES = (
    ("memory.max", "memory.current", _CACHE_V2),
    ("memory.high", "memory.current", _CACHE_V2),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", _CACHE_V1),
)


#: Process ids are numbers; this one is whoever looks.
SELF = "self"


def quotas(root: Path) -> Iterator[float]:
    """Each CPU quota above this process, in CPUs."""
    for group in cgroups(root, "cpu"):
        two = _numbers(group / "cpu.max")
        for quota_us, period_us in (
            (two[0], two[-1]),
            (_numbers(group / "cpu.cfs_quota_us")[0], _numbers(group / "cpu.cfs_period_us")[0]),
        ):
            if quota_us and period_us and quota_us > 0 and period_us > 0:
                yield quota_us / period_us


def memory_limits(root: Path, process: int | str = SELF) -> Iterator[tuple[int, int]]:
    """(limit, unreclaimable use) in bytes of each memory cgroup above this process, or another."""
    for group in cgroups(root, "memory", process):
        stat = dict(line.split(maxsplit=1) for line in _lines(group / "memory.stat") if " " in line)
        for limit_name, used_name, cache_keys in _MEMORY_FILES:
            limit, used = _numbers(group / limit_name)[0], _numbers(group / used_name)[0]
            if limit is not None and used is not None and 0 <= limit < _NO_LIMIT:
                cache = sum(_number(stat.get(key, "")) or 0 for key in cache_keys)
                yield limit, max(0, used - cache)


def throttled_us(root: Path, process: int | str = SELF) -> int | None:
    """Microseconds in which a CPU quota held `process` back so far; None where no quota is counted."""
    counts = [
        int(line.split()[1]) if line.startswith("throttled_usec ") else int(line.split()[1]) // 1000
        for group in cgroups(root, "cpu", process)
        for line in _lines(group / "cpu.stat")
        if re.fullmatch(r"throttled_(usec|time) \d+", line)
    ]
    return sum(counts) if counts else None


def cgroups(root: Path, controller: str, process: int | str = SELF) -> Iterator[Path]:
    """Folders of a process's cgroup and its ancestors, of each hierarchy that may have `controller`."""
    for line in _lines(root / f"proc/{process}/cgroup"):
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
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
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []


def _numbers(path: Path) -> list[int | None]:
    """The numbers of the first line, None for a word such as "max"; [None] if there is no such line."""
    lines = _lines(path)
    return [_number(word) for word in lines[0].split()] or [None] if lines else [None]


def _number(word: str) -> int | None:
    try:
        return int(word)
    except ValueError:
        return None
