"""A small process that waits for the chat, so that a chat that is killed does not leave a broken terminal.

A program that dies of SIGKILL, of too little memory or of a crash in native code cannot put its terminal in
order: mouse codes would pour into the shell, which reads on as soon as its child is gone. So the shell's
child is this process, and the chat is its child.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from app import exits

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

#: Takes back all that Textual asks of a terminal: mouse, paste, focus and key reports, synchronous updates,
#: reports of the size, the second screen, no cursor, no wrapping; and colours.
RESTORE = (
    "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2004l\x1b[?1004l\x1b[<u"
    "\x1b[?2026l\x1b[?2048l\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[0m"
)
_ON_ITS_WAY_S = 0.05  # reports that a terminal sent before it read RESTORE
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)


def keep(chat: Callable[[int | None], NoReturn]) -> int:
    """Runs `chat` in a child on this terminal and returns its exit code, once the terminal is in order.

    `chat` gets a descriptor that becomes readable when its keeper is gone; None where no process could be
    made, then it runs in this one. Must be called before there is a second thread.
    """
    try:
        modes = termios.tcgetattr(sys.stdin.fileno())
        gone, held = os.pipe()
        child = os.fork()
    except (OSError, termios.error):
        chat(None)
    if child == 0:
        os.close(held)
        chat(gone)
    os.close(gone)
    code = _wait(child)
    if _modes() not in (modes, None):
        _restore(modes)
    if code >= 0:
        return code
    print(f"s2chat: {signal.Signals(-code).name} ended the chat; what was written is saved", file=sys.stderr)
    return exits.SIGNALLED - code


def _wait(child: int) -> int:
    """The exit code of `child`, a signal's number below zero. Stops and goes on with it."""

    def forward(number: int, _: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # the chat gets it too, and stops when it has tidied up
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        os.kill(os.getpid(), signal.SIGSTOP)


def _modes() -> list[Any] | None:
    """How the terminal is set, None when it is gone."""
    try:
        return termios.tcgetattr(sys.stdin.fileno())
    except termios.error:
        return None


def _restore(modes: list[Any]) -> None:
    with suppress(OSError, termios.error):
        os.write(sys.stdout.fileno(), RESTORE.encode())
        time.sleep(_ON_ITS_WAY_S)
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSAFLUSH, modes)
