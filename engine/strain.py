"""Signs that memory runs short, for this process or for others on the machine."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.machine.cgroups import cgroups, memory_limits
from engine.machine.memory import waiting_for_memory

_FREE_SHARE = 0.03  # of the machine's memory: less is left than its programs need for a breath
_ROOM_SHARE = 0.0075  # of a cgroup's limit; a group made for this process alone is meant to be nearly full
_WAITING_PERCENT = 10.0  # of the time some program waited for memory
_WAITING_SHARE = 0.10  # what is free then, or the waiting has another cause
_FAULTS_PER_S = 50.0  # pages read back from disk: more than those of a program that just started


@dataclass(frozen=True, slots=True)
class Strain:
    """Figures of one moment; None where nobody counts them.

    `waiting`, `group_waiting`: percent of the last ten seconds in which some program of the machine, of this
    process's cgroups, waited for memory. `room`, `limit`: of the cgroup with the least room. Bytes.
    """

    free: int
    memory: int
    room: int | None = None
    limit: int | None = None
    waiting: float | None = None
    group_waiting: float | None = None
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Pressure:
    """`reason` in words. `hard`: memory is about to end; else programs are only slowed down."""

    reason: str
    hard: bool


def read_strain(root: Path = Path("/")) -> Strain:
    memory = psutil.virtual_memory()
    limits = [(max(0, limit - used), limit) for limit, used in memory_limits(root)]
    room, limit = min(limits, default=(None, None), key=lambda pair: pair[0] / max(1, pair[1]))
    groups = [value for group in cgroups(root, "") for value in waiting_for_memory(group / "memory.pressure")]
    return Strain(
        free=memory.available,
        memory=memory.total,
        room=room,
        limit=limit,
        waiting=max(waiting_for_memory(root / "proc/pressure/memory"), default=None),
        group_waiting=max(groups, default=None),
        faults=resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
    )


def pressure_of(now: Strain, before: Strain | None, seconds: float) -> Pressure | None:
    """What `now` means, `seconds` after `before`; None when all is well."""
    if now.room is not None and now.limit is not None and now.room < _ROOM_SHARE * now.limit:
        return Pressure("the memory group of the engine is full", hard=True)
    if now.free < _FREE_SHARE * now.memory:
        return Pressure("hardly any memory is free", hard=True)
    if (now.waiting or 0.0) >= _WAITING_PERCENT and now.free < _WAITING_SHARE * now.memory:
        return Pressure("other programs wait for memory", hard=False)
    if (now.group_waiting or 0.0) >= _WAITING_PERCENT:
        return Pressure("the engine's memory group waits for memory", hard=False)
    if before is not None and now.faults - before.faults >= _FAULTS_PER_S * max(seconds, 0.1):
        return Pressure("the engine's own memory is read back from disk", hard=False)
    return None


def spare(now: Strain) -> int:
    """Bytes that may be taken without bringing the pressure back at once."""
    free = now.free - int(2 * _FREE_SHARE * now.memory)
    if now.room is not None and now.limit is not None:
        free = min(free, now.room - int(2 * _ROOM_SHARE * now.limit))
    return max(0, free)
