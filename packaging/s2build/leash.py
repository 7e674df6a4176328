"""Runs a command that must not outlive who started it: `leash.py COMMAND ARGS...`, in a session of its own.

When the set-up dies, however that happens, the kernel tells this process, and it takes along what it started:
a compiler or an installer left behind would write into what the next set-up is making.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1


def end_session(*_: object) -> None:
    os.killpg(0, signal.SIGKILL)


def main(command: list[str]) -> int:
    parent = os.getppid()
    signal.signal(signal.SIGTERM, end_session)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the kernel knew
        return 1
    return 1 if subprocess.call(command) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
