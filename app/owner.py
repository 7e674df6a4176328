"""Names a running process so that it cannot be mistaken for a later one with the same number."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process id, when that process started (clock ticks since boot), and which boot that was."""

    pid: int
    started: str
    boot: str

    @classmethod
    def here(cls) -> Owner:
        return cls(os.getpid(), _start_ticks(os.getpid()) or "?", _boot_id())

    @classmethod
    def parse(cls, text: str) -> Owner:
        pid, _, rest = text.partition(":")
        started, _, boot = rest.partition(":")
        return cls(int(pid) if pid.isdigit() else 0, started, boot)

    def __str__(self) -> str:
        return f"{self.pid}:{self.started}:{self.boot}"

    def is_alive(self) -> bool:
        return self.boot == _boot_id() and _start_ticks(self.pid) == self.started


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "?"


def _start_ticks(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The command's name, in brackets, may hold spaces and brackets of its own.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[19]
