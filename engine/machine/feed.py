"""A program that says something again and again, read without ever waiting for it.

What it says may stop: it hangs, is ended, its service restarts. Then the last answer grows old, and the
program is started again, ever less often while that does not help.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.machine.helper import HelperError, end, why_ended

_FIRST_RETRY_S = 2.0
_LONGEST_RETRY_S = 30.0
_PIECE = 1 << 16
_WORDS = 2000  # bytes of its complaints that are kept


class Feed:
    """`command` prints one JSON object a line, until it is ended. For one thread at a time.

    `start_s`: how long the first line may take, `deadline_s` each further one. `command` raises HelperError
    where starting it is of no use now, with the reason.
    """

    def __init__(
        self,
        command: Callable[[], Sequence[str]],
        *,
        start_s: float,
        deadline_s: float,
        environment: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.answer: dict[str, Any] | None = None  # the last that was one
        self.error = "not asked yet"  # why there is no newer one, "" when it is new
        self._command, self._environment, self._clock = command, environment, clock
        self._start_s, self._deadline_s = start_s, deadline_s
        self._child: subprocess.Popen[bytes] | None = None
        self._left: subprocess.Popen[bytes] | None = None
        self._answered_at = self._due = self._retry_at = clock()
        self._retry_s = _FIRST_RETRY_S
        self._output = self._complaints = b""

    @property
    def age_s(self) -> float:
        """Seconds since the last answer came."""
        return self._clock() - self._answered_at

    def look(self) -> None:
        """Takes what has been said since the last look; starts the program where it does not run."""
        if self._child is not None:
            self._listen(self._child)
        elif self._clock() >= self._retry_at:
            self._begin()

    def close(self) -> None:
        """Ends the program; a later look starts it anew."""
        if self._child is not None:
            self._stop(self._child)
        self._retry_at, self._retry_s = self._clock(), _FIRST_RETRY_S

    def _begin(self) -> None:
        if self._left is not None and self._left.poll() is None:
            return  # it hangs inside a driver where nothing can end it, and so would another
        try:
            command = self._command()
        except HelperError as error:
            self.error = error.message
            return  # asking that again costs nothing: no need to wait
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=None if self._environment is None else dict(self._environment),
            )
        except OSError as error:
            self._failed(f"{command[0]} cannot be started: {error.strerror}")
            return
        for stream in (self._child.stdout, self._child.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
        self._output = self._complaints = b""
        self._due = self._clock() + self._start_s
        self.error = self.error if self.answer else "has not answered yet"

    def _listen(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        assert child.stderr is not None
        ended = child.poll() is not None  # asked first: what it said before its end is in the pipes
        self._complaints = (self._complaints + _read(child.stderr.fileno()))[-_WORDS:]
        said = self._take(_read(child.stdout.fileno()))
        if ended:
            self._stop(child)
            self._failed(said or why_ended(child.returncode, self._complaints.decode("utf-8", "replace")))
        elif self._clock() > self._due:
            self._stop(child)
            self._failed("gives no answer")

    def _take(self, output: bytes) -> str:
        """Keeps the last answer; what it says in place of one, "" for nothing."""
        *lines, self._output = (self._output + output).split(b"\n")
        self._output = self._output[-_PIECE:]
        said = ""
        for line in lines:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if not isinstance(found, dict):
                continue
            self._due = self._clock() + self._deadline_s
            said = " ".join(str(found.get("error", "")).split())[:300]
            if not said:
                self.answer, self.error = found, ""
                self._answered_at, self._retry_s = self._clock(), _FIRST_RETRY_S
        return said

    def _stop(self, child: subprocess.Popen[bytes]) -> None:
        end(child)
        self._child, self._left = None, child

    def _failed(self, error: str) -> None:
        self.error = error
        self._retry_at = self._clock() + self._retry_s
        self._retry_s = min(2 * self._retry_s, _LONGEST_RETRY_S)


def _read(pipe: int) -> bytes:
    """What is in a pipe that does not block, a few pieces of it at most."""
    found = b""
    try:
        while (piece := os.read(pipe, _PIECE)) and len(found) < 4 * _PIECE:
            found += piece
    except BlockingIOError:
        pass
    return found
