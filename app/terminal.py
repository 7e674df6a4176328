"""What the interface needs to know about its terminal: is it there, is it far away, did it go away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Callable

from app.keeper import RESTORE

#: Exit code of a process whose terminal went away: 128 + SIGHUP.
HANGUP_EXIT = 129
_STUCK_S = 3.0
_STDOUT = 1  # the interface has something else for `sys.stdout`


def is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()


def calm() -> None:
    """Asks Textual for few frames and no animation. To be called before Textual is imported."""
    remote = "SSH_CONNECTION" in os.environ
    os.environ.setdefault("TEXTUAL_FPS", "12" if remote else "30")
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")


def watch_hangup(
    loop: asyncio.AbstractEventLoop, gone: Callable[[], None], keeper: int | None = None
) -> None:
    """Calls `gone` on `loop` when the terminal is closed, also where no SIGHUP reaches the process.

    The same when the process at the other end of `keeper` has been killed: a shell has the terminal then.
    `gone` is expected to end the process; a loop that is stuck writing to the dead terminal cannot.
    """
    poll = select.poll()
    for watched in (sys.stdin.fileno(), keeper):
        if watched is not None:
            poll.register(watched, 0)  # only hang-up and error are reported

    def wait() -> None:
        if any(found == keeper for found, _ in poll.poll()):
            with contextlib.suppress(OSError):
                os.write(_STDOUT, RESTORE.encode())
        try:
            loop.call_soon_threadsafe(gone)
        except RuntimeError:
            return  # the loop is closed: the program is on its way out
        time.sleep(_STUCK_S)
        os._exit(HANGUP_EXIT)

    threading.Thread(target=wait, name="hangup", daemon=True).start()
