"""Prints a lock file as it reads on another Python: `locked.py LOCK PYTHON MACHINE`, PYTHON as in 3.12.

pip evaluates conditions for the Python it runs on, whichever it downloads for. A script of its own because it
runs under the build tools' Python, which has `packaging`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from packaging.markers import Marker

_ENTRY = re.compile(
    r"^(?P<pin>\S+==\S+)(?: ; (?P<condition>.*?))?(?P<hashes> \\\n(?:    --hash=\S+(?: \\)?\n)+)",
    re.MULTILINE,
)


def main(lock: str, python: str, machine: str) -> None:
    there = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_machine": machine,
    }
    for entry in _ENTRY.finditer(Path(lock).read_text()):
        condition = entry["condition"]
        if condition is None or Marker(condition).evaluate(there):
            print(entry["pin"] + entry["hashes"], end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
