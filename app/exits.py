"""Exit codes, and how an error is printed."""

from __future__ import annotations

import contextlib
import os
import sys

from app.text import clean
from engine.errors import BadRequest, Busy, Cancelled, ContextFull, EngineUnavailable, ModelError, S2Error

OK = 0
ERROR = 1
USAGE = 2
MODEL = 3
ENGINE = 4
SIGNALLED = 128  # and the signal's number
CANCELLED = 130
PIPE = 141

EPILOG = """\
exit codes:
  0    done
  1    an error, said on stderr
  2    a wrong flag or value, or no prompt
  3    the model cannot be loaded
  4    the engine cannot be reached or started, crashed, or is busy with another model
  130  cancelled with Ctrl+C; what was printed until then stands
  141  the reader of the output went away
  128 + N  signal N ended the chat; its terminal is in order"""

_CODES: tuple[tuple[type[S2Error], int], ...] = (
    (BadRequest, USAGE),
    (ContextFull, ERROR),
    (ModelError, MODEL),
    (EngineUnavailable, ENGINE),
    (Busy, ENGINE),
    (Cancelled, CANCELLED),
)


def drop_stdout() -> None:
    """Nobody reads it or no disk takes it: what is still buffered must not fail again at exit."""
    if sys.stdout is not None:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(error: S2Error) -> int:
    """Prints `error` to stderr, a hint on its own line, and returns the exit code it stands for."""
    print(f"s2chat: {clean(error.message)}", file=sys.stderr)
    if error.hint:
        print(f"hint: {clean(error.hint)}", file=sys.stderr)
    return next((code for kind, code in _CODES if isinstance(error, kind)), ERROR)
