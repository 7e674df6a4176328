"""Asks another process, and does not wait for it longer than it is worth.

Libraries of drivers hang, crash or belong to others; what happens to them in there happens to nobody else.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from engine.errors import S2Error

_LAST_WORDS_S = 0.5


class HelperError(S2Error):
    """The other process gave no answer; the message says why."""


def ask(
    command: Sequence[str], deadline_s: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The JSON object that `command` prints last. Raises HelperError, at the latest after the deadline."""
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            env=None if environment is None else dict(environment),
        )
    except OSError as error:
        raise HelperError(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        output, complaints = child.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        raise HelperError(f"gave no answer within {deadline_s:g} s") from None
    finally:
        end(child)
    return _answer(child.returncode, output, complaints)


def end(child: subprocess.Popen[Any]) -> None:
    """Ends it and its children. One that hangs inside a driver cannot be ended: it is left behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_LAST_WORDS_S)
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def _answer(code: int, output: str, complaints: str) -> dict[str, Any]:
    lines = output.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        found = None
    if isinstance(found, dict) and code == 0:
        return found
    raise HelperError(why_ended(code, complaints))


def why_ended(code: int, complaints: str) -> str:
    """In words, what became of a process that should have answered."""
    if code < 0:
        return f"ended by signal {-code}"
    last = (complaints.strip().splitlines() or ["it said nothing"])[-1]
    return f"failed: {last[:200]}"
