"""The secret that programs show which reach the engine over TCP: a file that only this user can read."""

from __future__ import annotations

import os
import secrets
import stat
from typing import TYPE_CHECKING

from engine.errors import EngineUnavailable
from engine.paths import private_dir

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 4096


def read_token(path: Path) -> str:
    """The token in `path`, made on first use. Raises EngineUnavailable where others could read it too."""
    try:
        private_dir(path.parent)
        token = _read(path) or _write(path)
    except OSError as error:
        raise EngineUnavailable(f"the token file {path} cannot be used: {error.strerror}") from error
    return token


def _read(path: Path) -> str:
    """ "" when there is none yet."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        token = file.read(_MOST_BYTES).decode("ascii", "replace").strip()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise EngineUnavailable(
            f"the token file {path} can be read by others", hint=f"chmod 600 {path}, or remove it"
        )
    if not token or not token.isascii():
        raise EngineUnavailable(f"the token file {path} has no token", hint="remove it, a new one is made")
    return token


def _write(path: Path) -> str:
    token = secrets.token_urlsafe(32)
    part = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{token}\n")
    part.replace(path)
    return token
