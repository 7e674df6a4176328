"""What stands between an open TCP port and the calls: web pages and other users reach loopback as well."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

from engine.errors import Forbidden, Unauthorized
from engine.serving import error_answer

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from engine.errors import S2Error

_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_OPEN = ("/health",)  # says nothing that a port scan does not


class Guard:
    """Lets a request through that names this machine as its host, comes from no foreign page, and shows the
    token. Pages of `origins` may read the answers, others may not even ask."""

    def __init__(self, app: ASGIApp, token: str, port: int, origins: Collection[str] = ()) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {*_HOSTS, *(f"{host}:{port}" for host in _HOSTS)}
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        refusal = self._refusal(scope, headers, origin)
        if origin in self._origins:
            send = _readable_for(origin or "", send)
            if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                await _preflight()(scope, receive, send)
                return
        if refusal is None:
            await self._app(scope, receive, send)
            return
        answer = error_answer(refusal)
        if refusal.status == 401:
            answer.headers["www-authenticate"] = "Bearer"
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope, headers: Headers, origin: str | None) -> S2Error | None:
        if headers.get("host", "").lower() not in self._hosts:
            return Forbidden("this is not a host of that name", hint="use http://127.0.0.1 with the port")
        if origin is not None and origin not in self._origins:
            return Forbidden("web pages may not use this endpoint", hint="s2chat serve --origin lets one in")
        if scope["path"] in _OPEN:
            return None
        kind, _, shown = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(shown.strip().encode(), self._token):
            return Unauthorized("the token is missing or wrong", hint="Authorization: Bearer TOKEN")
        return None


def _preflight() -> Response:
    allowed = {
        "access-control-allow-methods": "GET, POST",
        "access-control-allow-headers": "authorization, content-type",
        "access-control-max-age": "600",
    }
    return Response(status_code=204, headers=allowed)


def _readable_for(origin: str, send: Send) -> Send:
    async def send_with_origin(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message.get("headers", ())))
            headers["access-control-allow-origin"] = origin
            headers.add_vary_header("origin")
            message = {**message, "headers": headers.raw}
        await send(message)

    return send_with_origin
