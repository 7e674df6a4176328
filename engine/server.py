"""The engine process: `python -I -m engine.server`. Claims its folder, answers its socket, leaves in time."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import faulthandler
import logging
import os
import resource
import signal
import stat
import sys
import threading
from pathlib import Path

from engine.death import EXIT_LOCKED, EXIT_UNUSABLE, LOG_END, LOG_START
from engine.errors import EngineUnavailable
from engine.http import Server
from engine.instance import Instance, Locked
from engine.lifetime import Lifetime, watch
from engine.paths import Paths
from engine.routes import create_app
from engine.state import EngineState

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LOG_LIMIT_BYTES = 1 << 20
_LEAVE_WITHIN_S = 0.9


def main(arguments: list[str] | None = None) -> int:
    paths, lifetime = _parse(arguments)
    _prepare_process()
    try:
        instance = Instance.claim(paths)
    except Locked:
        return EXIT_LOCKED
    except EngineUnavailable as error:
        _say(error.line())
        return EXIT_UNUSABLE
    _shorten_log()
    asyncio.run(_serve(instance, lifetime, paths))
    return 0


async def _serve(instance: Instance, lifetime: Lifetime, paths: Paths) -> None:
    state = EngineState(os.getpid())
    _say(f"{LOG_START} {state.instance}")
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, state.leave)
    server = Server(create_app(state, paths.token))
    governing = asyncio.create_task(state.govern())
    tasks = [
        asyncio.create_task(watch(lifetime, state, instance)),
        asyncio.create_task(server.serve([instance.socket])),
    ]
    await asyncio.wait(
        [*tasks, asyncio.create_task(state.leaving.wait())], return_when=asyncio.FIRST_COMPLETED
    )
    failed = not state.leaving.is_set()
    if not failed:  # said before clients notice: they look here for the reason
        _say(f"{LOG_END} in good order")
    state.leave()
    # The decode thread may sit in a long native call. Memory and lock go with the process in any case.
    threading.Timer(_LEAVE_WITHIN_S, _exit, (instance,)).start()
    governing.cancel()
    instance.withdraw()
    server.should_exit = True
    results = await asyncio.gather(*tasks, return_exceptions=True)
    if failed:
        log.error("the server ended by itself: %r", results)
        os._exit(1)
    _exit(instance)


def _parse(arguments: list[str] | None) -> tuple[Paths, Lifetime]:
    default = Paths.default()
    parser = argparse.ArgumentParser(prog="engine.server", description=__doc__)
    parser.add_argument("--service", action="store_true", help="stay until told to leave")
    parser.add_argument("--linger", type=float, default=3.0, help="seconds to stay after the last client")
    parser.add_argument("--starter", type=int, default=0, help="process that waits for this engine")
    parser.add_argument(
        "--runtime", type=Path, default=default.runtime, help="folder of the socket and the lock"
    )
    parser.add_argument("--state", type=Path, default=default.state, help="folder of the log")
    options = parser.parse_args(arguments)
    paths = Paths(runtime=options.runtime, state=options.state, data=default.data)
    return paths, Lifetime(options.service, options.linger, options.starter)


def _prepare_process() -> None:
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    # A core file would hold the chat.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.raiseExceptions = False  # a full disk under the log is no reason to fail
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        faulthandler.enable()


def _shorten_log() -> None:
    """Empties the log when it has grown too long; only an engine that holds the lock does."""
    with contextlib.suppress(OSError):
        found = os.fstat(2)
        if stat.S_ISREG(found.st_mode) and found.st_size > _LOG_LIMIT_BYTES:
            os.ftruncate(2, 0)


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def _exit(instance: Instance) -> None:
    instance.withdraw()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
