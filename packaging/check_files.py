"""Refuses tracked files over 95 MB: hosts of repositories refuse them at 100."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT_BYTES = 95_000_000


def main() -> int:
    listing = subprocess.run(["git", "ls-files", "-z"], stdout=subprocess.PIPE, text=True, check=True).stdout
    paths = [Path(name) for name in listing.split("\0") if name]
    large = [path for path in paths if path.is_file() and path.stat().st_size > LIMIT_BYTES]
    for path in large:
        print(f"{path}: {path.stat().st_size / 1e6:.0f} MB, the limit is {LIMIT_BYTES / 1e6:.0f} MB")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
