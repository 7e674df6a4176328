"""Says in words how an engine process ended."""

from __future__ import annotations

import itertools
import os
import signal
from dataclasses import dataclass
from pathlib import Path

#: The engine found another one holding the lock and left the work to it.
EXIT_LOCKED = 75
#: The engine could not use its folders or socket; the log's last line says why.
EXIT_UNUSABLE = 78

#: First words of the line the engine writes to its log when it starts and when it leaves in good order.
LOG_START = "s2chat engine started"
LOG_END = "s2chat engine left"

_SIGNALS: dict[int, str] = {
    signal.SIGSEGV: "a memory fault in native code (SIGSEGV)",
    signal.SIGBUS: "a memory fault (SIGBUS): the model file was cut short or its disk failed while in use",
    signal.SIGABRT: "native code gave up (SIGABRT)",
    signal.SIGFPE: "an arithmetic fault in native code (SIGFPE)",
    signal.SIGILL: "an illegal instruction (SIGILL): this build uses instructions the CPU lacks",
    signal.SIGTERM: "another program ended it (SIGTERM)",
    signal.SIGINT: "another program ended it (SIGINT)",
    signal.SIGHUP: "another program ended it (SIGHUP)",
}

# Python's fault handler writes these into the log, which helps those who are not the engine's parent.
_FAULTS = {
    "Fatal Python error: Segmentation fault": signal.SIGSEGV,
    "Fatal Python error: Aborted": signal.SIGABRT,
    "Fatal Python error: Bus error": signal.SIGBUS,
    "Fatal Python error: Illegal instruction": signal.SIGILL,
    "Fatal Python error: Floating-point exception": signal.SIGFPE,
}

# What they write from here on is a stack trace, which tells a user nothing.
_TRACE = "Fatal Python error"


@dataclass(frozen=True, slots=True)
class Death:
    """How an engine ended. `expected`: it left in good order, nothing went wrong."""

    cause: str
    expected: bool
    log_lines: tuple[str, ...]


def describe(exit_code: int | None, log: str, *, oom_kills: int = 0) -> Death:
    """`exit_code` as `subprocess` has it (minus the signal), None when only the parent could know it.

    `log` is what this engine wrote; `oom_kills` counts processes killed for memory since it started.
    """
    lines = [line for line in log.splitlines() if line.strip()]
    said = itertools.takewhile(lambda line: not line.startswith(_TRACE), lines)
    shown = tuple(line for line in said if not line.startswith((LOG_START, LOG_END)))[-8:]
    left = any(line.startswith(LOG_END) for line in lines)
    if exit_code == 0 or (exit_code is None and left):
        return Death("the engine was stopped", True, shown)
    return Death(_cause(exit_code, lines, oom_kills), False, shown)


def _cause(exit_code: int | None, lines: list[str], oom_kills: int) -> str:
    if exit_code is None:
        fault = next((number for line in lines for text, number in _FAULTS.items() if text in line), None)
        if fault is not None:
            return f"the engine died: {_SIGNALS[fault]}"
        if oom_kills:
            return "the engine is gone: the system ran out of memory and killed a process meanwhile"
        return "the engine is gone; another program had started it, so its exit status is not known"
    if exit_code == -signal.SIGKILL:
        if oom_kills:
            return "the engine was killed because memory ran out (SIGKILL by the kernel)"
        return "the engine was killed (SIGKILL): most likely memory ran out, or someone ended it"
    if exit_code < 0:
        return f"the engine died: {_SIGNALS.get(-exit_code, f'signal {-exit_code}')}"
    return f"the engine ended with exit code {exit_code}"


def log_of(path: Path, instance: str) -> str:
    """What the engine `instance` wrote to the log file at `path`; nothing when it never got that far."""
    text = _tail(path, 0)
    at = text.rfind(f"{LOG_START} {instance}")
    if at < 0:
        return ""
    after = text.find(LOG_START, at + len(LOG_START))
    return text[at:after] if after >= 0 else text[at:]


def log_since(path: Path, offset: int) -> str:
    """What was written to the log file at `path` after `offset` bytes, or all when it was cut since."""
    return _tail(path, offset)


def _tail(path: Path, offset: int, limit_bytes: int = 64 << 10) -> str:
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(offset if offset <= size else 0, size - limit_bytes))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def oom_kill_count() -> int:
    """A number that grows when a process is killed for lack of memory, in this cgroup or on this machine."""
    return sum(_count(path) for path in (Path("/proc/vmstat"), *_cgroup_event_files()))


def _cgroup_event_files() -> list[Path]:
    try:
        text = Path("/proc/self/cgroup").read_text()
    except OSError:
        return []
    root = Path("/sys/fs/cgroup")
    found = []
    for line in text.splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            found.append(root / group.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            found.append(root / "memory" / group.lstrip("/") / "memory.oom_control")
    return found


def _count(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
