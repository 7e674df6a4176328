"""Finished builds, kept by key outside the checkout. An entry is whole and unharmed, or it is not there."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from s2build.console import say
from s2build.problem import SetupError
from s2build.recipe import file_sha256

_SUM = "sha256"
_KEPT_ENTRIES = 8
_OLD_DAYS = 30


class Cache:
    """`root` holds one folder per finished build, the downloaded source, tools and build trees."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def default(cls) -> Cache:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return cls(Path(base) / "s2chat" / "native")

    @property
    def sdist(self) -> Path:
        return self.root / "sdist"

    @property
    def tools(self) -> Path:
        return self.root / "tools"

    @property
    def trees(self) -> Path:
        return self.root / "trees"

    @property
    def wheelhouses(self) -> Path:
        return self.root / "wheelhouses"

    def wheel(self, key: str) -> Path | None:
        """The wheel kept under `key`; None without one, also when it is not the one that was put there."""
        entry = self.root / key
        try:
            expected = (entry / _SUM).read_text().strip()
            wheels = list(entry.glob("*.whl"))
            if len(wheels) == 1 and file_sha256(wheels[0]) == expected:
                os.utime(entry)  # for prune()
                return wheels[0]
        except OSError:
            pass
        return None

    def put(self, key: str, wheel: Path) -> Path:
        """Keeps a copy of `wheel` under `key`; appears in one step, replacing a damaged entry."""
        entry = self.root / key
        partial = self.root / f".{key}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        copy = Path(shutil.copy(wheel, partial))
        (partial / _SUM).write_text(file_sha256(copy) + "\n")
        shutil.rmtree(entry, ignore_errors=True)
        partial.rename(entry)
        return entry / wheel.name

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Keeps two set-ups from doing the same work; the kernel gives the lock back whatever happens."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file = (self.root / f".{name}.lock").open("w")
        except OSError as error:
            raise SetupError(f"cannot write to {self.root} ({error.strerror}): set XDG_CACHE_HOME") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another set-up is at work; waiting for it")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def prune(self) -> None:
        """Drops the builds used longest ago, and build trees and wheelhouses nobody came back for."""
        entries = sorted(
            self.root.glob(f"*/{_SUM}"), key=lambda path: path.parent.stat().st_mtime, reverse=True
        )
        for entry in entries[_KEPT_ENTRIES:]:
            shutil.rmtree(entry.parent, ignore_errors=True)
        for folder in (*self.trees.glob("*"), *self.wheelhouses.glob("*")):
            if time.time() - folder.stat().st_mtime > _OLD_DAYS * 86400:
                shutil.rmtree(folder, ignore_errors=True)
