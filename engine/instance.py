"""There is one engine per runtime folder: the lock it holds for life, and the socket only it may replace."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import stat
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import EngineUnavailable
from engine.paths import private_dir

if TYPE_CHECKING:
    from pathlib import Path

    from engine.paths import Paths

_BACKLOG = 128
_LOCK_WAIT_S = 5.0
_LOCK_STEP_S = 0.05


class Locked(EngineUnavailable):
    code = "locked"


@dataclass(frozen=True, slots=True)
class Instance:
    """This process as the engine of its runtime folder. The lock ends with the process, however it ends."""

    path: Path
    socket: socket.socket
    lock_fd: int
    inode: int

    @classmethod
    def claim(cls, paths: Paths) -> Instance:
        """Raises `Locked` when another engine is there, `EngineUnavailable` when a folder cannot be used."""
        own_folder(paths.runtime)
        own_folder(paths.socket.parent)
        lock_fd = _lock(paths)
        listener = _listen(paths.socket)
        return cls(paths.socket, listener, lock_fd, paths.socket.stat().st_ino)

    @property
    def reachable(self) -> bool:
        """The socket's file is still ours: nobody removed or replaced it."""
        try:
            return self.path.stat().st_ino == self.inode
        except OSError:
            return False

    def withdraw(self) -> None:
        """Removes the socket's file, so that the next client starts a new engine."""
        if self.reachable:
            with contextlib.suppress(OSError):
                self.path.unlink()


def own_folder(folder: Path) -> None:
    """Makes sure that only this user can reach into `folder`."""
    try:
        private_dir(folder)
        found = folder.lstat()
    except OSError as error:
        raise EngineUnavailable(
            f"the folder {folder} cannot be used: {error.strerror}", hint="set S2CHAT_HOME to another folder"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise EngineUnavailable(
            f"{folder} is not a folder that only this user can enter",
            hint="remove it, or set S2CHAT_HOME to another folder",
        )


def _lock(paths: Paths) -> int:
    """The held lock. An engine that is leaving gets some seconds; one that answers keeps the lock."""
    deadline = time.monotonic() + _LOCK_WAIT_S
    while True:
        descriptor = _open_lock(paths.lock)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            if _answers(paths.socket) or time.monotonic() >= deadline:
                raise Locked("another engine holds the lock") from None
            time.sleep(_LOCK_STEP_S)
            continue
        if _is_file(descriptor, paths.lock):
            with contextlib.suppress(OSError):  # the number is a courtesy; a full disk must not matter
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{os.getpid()}\n".encode())
            return descriptor
        os.close(descriptor)  # somebody removed the file between our open and our lock


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise EngineUnavailable(f"the lock {path} cannot be opened: {error.strerror}") from error


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def _listen(path: Path) -> socket.socket:
    if _answers(path):  # its lock file was removed under it; the engine itself is alive
        raise Locked("another engine answers on the socket")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        path.unlink(missing_ok=True)
        listener.bind(str(path))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise EngineUnavailable(f"the socket {path} cannot be opened: {error}") from error
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True
