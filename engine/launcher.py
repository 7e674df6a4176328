"""Connects to the running engine process, or starts one. `engine.supervisor` decides about restarts."""

from __future__ import annotations

import os
import site
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from engine import death
from engine.errors import EngineUnavailable, S2Error
from engine.instance import own_folder
from engine.messages import API_VERSION, Handshake
from engine.paths import Paths, private_dir
from engine.probe import call

_STEP_S = 0.02


class EngineProcess(subprocess.Popen[bytes]):
    """Outlives the program that started it where others use it, so `Popen` need not warn of that."""

    def __del__(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Handle:
    """A running engine. `process` is set when this program started it."""

    paths: Paths
    hello: Handshake
    process: EngineProcess | None
    oom_kills: int

    @property
    def socket(self) -> Path:
        return self.paths.socket

    def death(self, wait_s: float = 1.0) -> death.Death | None:
        """How this engine ended, None while it lives. Waits up to `wait_s` seconds for a dying one."""
        oom_kills = max(0, death.oom_kill_count() - self.oom_kills)
        log = death.log_of(self.paths.log, self.hello.instance)
        if self.process is None:
            return None if self._answers() else death.describe(None, log, oom_kills=oom_kills)
        try:
            code = self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return None
        return death.describe(code, log, oom_kills=oom_kills)

    def _answers(self) -> bool:
        hello = _hello(self.paths.socket)
        return hello is not None and hello.instance == self.hello.instance


def find_engine(paths: Paths) -> Handle | None:
    """The running engine, None when there is none."""
    _check_folder(paths.socket.parent)
    hello = _hello(paths.socket)
    return None if hello is None else _handle(paths, hello, None)


def ensure_engine(
    paths: Paths, *, service: bool = False, linger_s: float = 3.0, timeout_s: float = 20.0
) -> Handle:
    """The running engine, or a new one, once it answers. Blocks for up to `timeout_s` seconds.

    A `service` stays until it is told to leave; any other engine leaves `linger_s` seconds after its last
    client. Raises `EngineUnavailable` with the last log lines when it cannot be started, and when the one
    that runs speaks another protocol.
    """
    deadline = time.monotonic() + timeout_s
    _check_folder(paths.socket.parent)
    offset = _log_size(paths.log)
    process: EngineProcess | None = None
    while time.monotonic() < deadline:
        hello = _hello(paths.socket, attach=True)
        if hello is not None:
            return _handle(paths, hello, process)
        if process is None:
            process = _spawn(paths, service, linger_s)
        code = process.poll()
        if code == death.EXIT_LOCKED:  # another program's engine was first; it answers soon, or is leaving
            process = None
        elif code is not None:
            raise _failed(code, paths, offset)
        time.sleep(_STEP_S)
    _discard(process)
    raise EngineUnavailable(f"the engine did not answer within {timeout_s:g} s", hint=_holder(paths))


def _handle(paths: Paths, hello: Handshake, process: EngineProcess | None) -> Handle:
    if hello.api[0] != API_VERSION[0]:
        _discard(process)
        raise EngineUnavailable(
            f"the running engine (build {hello.build}) speaks protocol {hello.api[0]}, "
            f"this program {API_VERSION[0]}",
            hint="stop it with `s2chat stop` of the version that started it",
        )
    if process is not None and process.pid != hello.pid:
        _discard(process)
        process = None
    return Handle(paths, hello, process, death.oom_kill_count())


def _hello(path: Path, *, attach: bool = False) -> Handshake | None:
    """`attach` tells the engine that a client is about to open its stream."""
    try:
        return Handshake.from_json(
            call(path, "GET", "/handshake?attach=1" if attach else "/handshake", timeout_s=2.0)
        )
    except EngineUnavailable:
        return None
    except (S2Error, KeyError, TypeError, ValueError) as error:
        raise EngineUnavailable(f"something that is no engine answers at {path}: {error!r}") from error


def _spawn(paths: Paths, service: bool, linger_s: float) -> EngineProcess:
    # The engine would say so as well, but in a log that may lie in a folder just as useless.
    own_folder(paths.runtime)
    options = ["--runtime", str(paths.runtime), "--state", str(paths.state), "--linger", f"{linger_s:g}"]
    options += ["--starter", str(os.getpid()), *(["--service"] if service else [])]
    log = _open_log(paths.log)
    try:
        return EngineProcess(
            [sys.executable, _isolation(), "-m", "engine.server", *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            close_fds=True,
            cwd="/",
        )
    except OSError as error:
        raise EngineUnavailable(f"the engine cannot be started: {error}") from error
    finally:
        if log != subprocess.DEVNULL:
            os.close(log)


def _isolation() -> str:
    """`-I` keeps foreign folders and settings out, but also hides packages installed for one user only."""
    user_site = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    return "-E" if user_site and Path(__file__).is_relative_to(user_site) else "-I"


def _open_log(path: Path) -> int:
    """A log that cannot be written, on a full disk for example, must not keep the engine from starting."""
    try:
        private_dir(path.parent)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return subprocess.DEVNULL


def _log_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _discard(process: EngineProcess | None) -> None:
    if process is None:
        return
    process.terminate()
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _failed(code: int, paths: Paths, offset: int) -> EngineUnavailable:
    end = death.describe(code, death.log_since(paths.log, offset))
    if code == death.EXIT_UNUSABLE and end.log_lines:
        return EngineUnavailable(end.log_lines[-1])
    lines = "\n".join(("the engine cannot be started: " + end.cause, *end.log_lines))
    return EngineUnavailable(lines, hint=f"the whole log is {paths.log}")


def _holder(paths: Paths) -> str:
    try:
        pid = paths.lock.read_text().strip()
    except OSError:
        pid = ""
    return f"process {pid} holds the lock; end it if it hangs" if pid else f"see {paths.log}"


def _check_folder(folder: Path) -> None:
    """Refuses a socket folder that someone else could have filled. A missing one is fine."""
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        raise EngineUnavailable(f"the folder of the socket cannot be used: {error}") from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise EngineUnavailable(
            f"{folder} is not a folder of this user", hint="remove it, or set S2CHAT_HOME to another folder"
        )
