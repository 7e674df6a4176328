"""Memory of the machine, of the cgroups above this process, and whether anybody waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from engine.machine.cgroups import cgroups, memory_limits
from engine.machine.reading import Reading, read, text_of

_MEMINFO = "proc/meminfo"


def read_memory(root: Path) -> dict[str, Reading]:
    """Bytes; "memory.pressure" in percent of the last ten seconds."""
    info = meminfo(root)
    tightest = min(((limit - used, limit) for limit, used in memory_limits(root)), default=None)
    room, limit = tightest or (None, None)
    waiting = [
        value for group in cgroups(root, "") for value in waiting_for_memory(group / "memory.pressure")
    ]
    return {
        "memory.total": Reading(info.get("MemTotal"), f"/{_MEMINFO}"),
        "memory.available": Reading(info.get("MemAvailable"), f"/{_MEMINFO}"),
        "memory.swap": Reading(info.get("SwapTotal"), f"/{_MEMINFO}"),
        "memory.swap_used": Reading(_difference(info, "SwapTotal", "SwapFree"), f"/{_MEMINFO}"),
        "memory.swap_kind": read("/proc/swaps", lambda: _swap_kinds(root) or None),
        "memory.limit": Reading(limit, "the tightest cgroup"),
        "memory.limit_room": Reading(max(0, room) if room is not None else None, "the tightest cgroup"),
        "memory.pressure": read(
            "/proc/pressure/memory",
            lambda: max(waiting_for_memory(root / "proc/pressure/memory"), default=None),
        ),
        "memory.limit_pressure": Reading(max(waiting, default=None), "cgroups, version 2 only"),
    }


def meminfo(root: Path) -> dict[str, int]:
    """Bytes by the kernel's names; without the kernel's file, psutil's two figures."""
    found: dict[str, int] = {}
    try:
        for line in text_of(root, _MEMINFO).splitlines():
            name, _, value = line.partition(":")
            words = value.split()
            if words and words[0].isdigit():
                found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    except OSError:
        pass
    if "MemTotal" not in found or "MemAvailable" not in found:
        memory = psutil.virtual_memory()
        found |= {"MemTotal": memory.total, "MemAvailable": memory.available}
    return found


def waiting_for_memory(path: Path) -> Iterator[float]:
    """avg10 of the "some" line of a pressure file: percent of the time in which some program waited."""
    try:
        lines = path.read_text(errors="replace").splitlines()
        for line in lines:
            if line.startswith("some "):
                values = dict(word.split("=", 1) for word in line.split()[1:])
                yield float(values["avg10"])
    except (OSError, ValueError, KeyError):
        return


def _difference(info: dict[str, int], whole: str, rest: str) -> int | None:
    return info[whole] - info[rest] if whole in info and rest in info else None


def _swap_kinds(root: Path) -> list[str]:
    """zram, a file or a partition: only the latter two are on a disk."""
    names = [line.split()[0] for line in text_of(root, "proc/swaps").splitlines()[1:] if line.split()]
    kinds = {"zram" if "zram" in name else "disk" for name in names}
    return sorted(kinds)
