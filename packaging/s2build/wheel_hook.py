"""Runs scikit-build-core's build hook in the current folder: `wheel_hook.py OUTPUT_DIR SETTINGS_AS_JSON`.

A script of its own because it runs under the build tools' Python, in a session of its own. When the set-up
that started it dies, however that happens, it takes the compilers along: two builds would spoil one tree.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_session(*_: object) -> None:
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    signal.signal(signal.SIGTERM, end_session)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    from scikit_build_core.build import build_wheel

    print("wheel:", build_wheel(sys.argv[1], json.loads(sys.argv[2])), flush=True)


if __name__ == "__main__":
    main()
