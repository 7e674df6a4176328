"""Progress on a terminal (one moving line) and in a log (a line now and then)."""

from __future__ import annotations

import shutil
import sys
import time

_SPARSE_SECONDS = 20.0  # between two lines of one step where nobody watches a moving one


class Step:
    """One step of the set-up: a line rewritten in place on a terminal, a few lines elsewhere."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._began = self._printed = time.monotonic()
        self._moving = sys.stderr.isatty()
        self._write(f"{title} …", final=not self._moving)

    def update(self, done: int, total: int, what: str = "") -> None:
        """Shows `done` of `total`, and `what` is being worked on."""
        now = time.monotonic()
        if not self._moving and now - self._printed < _SPARSE_SECONDS:
            return
        self._printed = now
        count = f"{done}/{total}" if total else str(done)
        self._write(f"{self.title}: {count}, {now - self._began:.0f} s  {what}", final=not self._moving)

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._write(f"{self.title}: done, {time.monotonic() - self._began:.0f} s", final=True)
        elif self._moving:
            sys.stderr.write("\n")  # what is said about it starts on a line of its own

    def _write(self, text: str, *, final: bool) -> None:
        if self._moving:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{text if final else text[:width]}")
        else:
            sys.stderr.write(text)
        sys.stderr.write("\n" if final else "")
        sys.stderr.flush()


def say(text: str) -> None:
    """One line for the person who set this going. Standard output stays free for results."""
    print(text, file=sys.stderr, flush=True)
