"""Runs the programs a set-up needs; none of them outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from s2build.problem import SetupError

_LEASH = str(Path(__file__).with_name("leash.py"))

Command = Sequence[str | Path]


@dataclass(frozen=True)
class Outcome:
    ok: bool
    output: str


def run(
    command: Command,
    *,
    on_line: Callable[[str], None] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Outcome:
    """Runs `command` to its end, handing each line it prints to `on_line`. Ctrl-C ends it first."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", _LEASH, *map(str, command)],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    try:
        with process.stdout:
            for line in process.stdout:
                lines.append(line)
                if on_line:
                    on_line(line)
        return Outcome(process.wait() == 0, "".join(lines))
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def must(command: Command, environment: Mapping[str, str] | None = None) -> None:
    """Runs `command` to its end. Raises SetupError with all it printed when it fails."""
    outcome = run(command, env=environment)
    if not outcome.ok:
        raise SetupError(f"{' '.join(map(str, command))} failed:\n{outcome.output}")


def first_line(command: Sequence[str]) -> str:
    """The first line a quick command prints, or "" when it cannot be run."""
    return printed(command).partition("\n")[0].strip()


def printed(command: Sequence[str]) -> str:
    """What a quick command prints, or "" when it cannot be run."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout
