"""A memory cgroup for one process, v1 or v2: what a machine with less memory would be to it.

Pages of files count in it, unlike in a limit on address space: a model that is mapped pays for what it reads.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from engine.errors import S2Error
from engine.machine.cgroups import cgroups

_ENTER = 'echo $$ > "$0" && exec "$@"'
_REMOVE_S = 2.0  # until a group whose process is gone lets itself be removed


@dataclass(frozen=True, slots=True)
class _Files:
    """How a version of cgroups names things; `swap` holds for memory and swap together in v1, swap in v2."""

    limit: str
    swap: str
    peak: str
    events: str
    swap_is_sum: bool


_V1 = _Files(
    "memory.limit_in_bytes",
    "memory.memsw.limit_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    True,
)
_V2 = _Files("memory.max", "memory.swap.max", "memory.peak", "memory.events", False)


class NotPermitted(S2Error):  # noqa: N818 -- as all errors here, it says what happened
    """No memory cgroup can be made here; the message says why."""


class MemoryGroup:
    """A group of `limit` bytes without swap, below the group of this process or one above it."""

    def __init__(self, folder: Path, files: _Files, limit: int) -> None:
        self.folder, self._files, self.limit = folder, files, limit

    @classmethod
    def make(cls, limit: int, root: Path = Path("/")) -> MemoryGroup:
        """Raises NotPermitted."""
        reasons: list[str] = []
        for parent, files in _parents(root):
            folder = parent / f"s2chat-bench-{os.getpid()}-{time.monotonic_ns()}"
            try:
                folder.mkdir()
            except OSError as error:
                reasons.append(f"{parent}: {error.strerror}")
                continue
            group = cls(folder, files, limit)
            try:
                group._set_limit()
                group._try_entering()
            except OSError as error:
                group.close()
                reasons.append(f"{parent}: {error.strerror or error}")
                continue
            return group
        raise NotPermitted(
            "no memory cgroup can be made here: "
            + (reasons[0] if reasons else "none has a memory controller"),
            hint="run as root, or in a scope of your own: systemd-run --user --scope -p Delegate=yes",
        )

    def entering(self, command: Sequence[str]) -> list[str]:
        """The command line that runs `command` in the group, from its first page on."""
        return ["/bin/sh", "-c", _ENTER, str(self.folder / "cgroup.procs"), *command]

    def peak(self) -> int | None:
        """The most bytes it ever held, pages of files among them; None where the kernel does not say."""
        try:
            return int((self.folder / self._files.peak).read_text())
        except (OSError, ValueError):
            return None

    def killed(self) -> bool:
        """Whether the kernel killed a process because the limit was reached."""
        try:
            events = (self.folder / self._files.events).read_text().splitlines()
        except OSError:
            return False
        return any(line.startswith("oom_kill ") and line != "oom_kill 0" for line in events)

    def close(self) -> None:
        """Removes the group; its processes have ended."""
        give_up = time.monotonic() + _REMOVE_S
        while True:
            with contextlib.suppress(OSError):  # the kernel is still tidying up after the process
                self.folder.rmdir()
            if not self.folder.exists() or time.monotonic() > give_up:
                return
            time.sleep(0.02)

    def __enter__(self) -> MemoryGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _set_limit(self) -> None:
        (self.folder / self._files.limit).write_text(str(self.limit))
        with contextlib.suppress(OSError):  # a kernel that does not count swap
            (self.folder / self._files.swap).write_text(str(self.limit if self._files.swap_is_sum else 0))

    def _try_entering(self) -> None:
        """A group may be ours to make and not ours to enter."""
        result = subprocess.run(self.entering(["true"]), capture_output=True, text=True)
        if result.returncode != 0:
            raise OSError(f"it cannot be entered ({result.stderr.strip()})")


def _parents(root: Path) -> Iterator[tuple[Path, _Files]]:
    """Groups that can have one below them, the nearest first."""
    for group in cgroups(root, "memory"):
        if (group / _V1.limit).exists():
            yield group, _V1
        else:
            with contextlib.suppress(OSError):
                if "memory" in (group / "cgroup.subtree_control").read_text().split():
                    yield group, _V2
