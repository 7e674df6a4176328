"""One blocking call to the engine over its Unix socket, for programs that have no event loop."""

from __future__ import annotations

import http.client
import json
import socket
from typing import TYPE_CHECKING, Any

from engine.client_errors import error_from_reply
from engine.errors import EngineUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("engine", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def call(
    path: Path, method: str, target: str, body: Mapping[str, Any] | None = None, *, timeout_s: float = 5.0
) -> dict[str, Any]:
    """The JSON answer of the engine at socket `path`.

    Raises `EngineUnavailable` when nobody answers in time, or the error the engine answered with.
    """
    connection = UnixConnection(path, timeout_s)
    headers = {"connection": "close", "content-type": "application/json"}
    try:
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        content = reply.read()
    except (OSError, http.client.HTTPException) as error:
        raise EngineUnavailable(_reason(error, timeout_s)) from error
    finally:
        connection.close()
    if reply.status >= 400 and target != "/health":
        raise error_from_reply(content)
    answer: dict[str, Any] = json.loads(content)
    return answer


def _reason(error: Exception, timeout_s: float) -> str:
    if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
        return "no engine is running"
    if isinstance(error, TimeoutError):
        return f"the engine gave no sign of life for {timeout_s:g} s"
    return f"the engine cannot be reached: {error}"
