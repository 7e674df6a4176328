"""A program on a pseudo-terminal: what a bench types, what it sees, and when."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

_PIECE = 1 << 16
_LEAVES_WITHIN_S = 10.0
_LONGEST_S = 3600.0  # that one look may take


class Terminal:
    """`command` with a terminal of `columns` × `lines` cells, the session's own as in a window.

    Its output is read only while somebody waits here, so a bench waits all the time.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        columns: int = 80,
        lines: int = 24,
    ) -> None:
        self._leader, follower = pty.openpty()
        self._seen = bytearray()  # since the last `type` or `resize`
        self.written = 0  # bytes of output so far
        self.resize(columns, lines)
        self.process = subprocess.Popen(
            command,
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**os.environ, "TERM": "xterm-256color", **(environment or {})},
            start_new_session=True,
        )
        os.close(follower)

    def resize(self, columns: int, lines: int) -> None:
        """What a window does that is dragged: the size, and with it SIGWINCH."""
        self._seen.clear()
        fcntl.ioctl(self._leader, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        self._seen.clear()
        os.write(self._leader, text.encode())

    def wait_for(self, text: str, timeout_s: float) -> float:
        """Reads until `text` was written since the last `type` or `resize`; seconds that took from now.

        Raises TimeoutError after `timeout_s`, and EOFError where the program has left.
        """
        started, wanted = time.monotonic(), text.encode()
        while wanted not in self._seen:
            left = timeout_s - (time.monotonic() - started)
            if left <= 0:
                raise TimeoutError(f"{text!r} was not shown within {timeout_s:g} s")
            self._read(left)
        return time.monotonic() - started

    def watch(self, seconds: float) -> None:
        """Reads for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._read(left)

    def _read(self, timeout_s: float) -> None:
        if not select.select([self._leader], [], [], min(timeout_s, _LONGEST_S))[0]:
            return
        try:
            piece = os.read(self._leader, _PIECE)
        except OSError:  # Linux says so once the other side is closed
            raise EOFError("the program has left its terminal") from None
        self.written += len(piece)
        self._seen += piece

    def end(self) -> None:
        """Asks the program to leave, reading what it still has to say; kills what does not."""
        self.process.terminate()
        with suppress(EOFError):
            self.watch(_LEAVES_WITHIN_S)
        try:
            self.process.wait(_LEAVES_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._leader)
