"""The transport over a network: a key that only its server sees, and failures in words."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from engine.client_errors import error_from_json
from engine.errors import (
    BadRequest,
    Busy,
    ContextFull,
    EngineUnavailable,
    Forbidden,
    ModelError,
    S2Error,
    Unauthorized,
)
from engine.remote.address import Address
from engine.transport import Garbled, Transport, plain_line

_NAME_KEY = "name a file that holds it with --key-file, or set OPENAI_API_KEY"
_ASK_LATER = "ask again later; its own log says more"
#: How servers say that a prompt is too long.
_TOO_LONG = (
    "context_length",
    "context length",
    "context size",
    "exceed_context",
    "maximum context",
    "too long",
)


class NetworkTransport(Transport):
    """Redirects are not followed: a key is for the server that was named."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.name = address.place
        headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if address.key:
            headers["authorization"] = f"Bearer {address.key}"
        if address.is_loopback:
            # Without the port: behind a tunnel the server's is another, and ours looks at the name.
            headers["host"] = f"[{address.host}]" if ":" in address.host else address.host
        super().__init__(_client(address, headers))

    def unreachable(self, error: httpx.RequestError) -> EngineUnavailable:
        causes = list(_causes(error))
        for cause in causes:
            if isinstance(cause, ssl.SSLCertVerificationError):
                return EngineUnavailable(
                    f"the certificate of {self.name} is not trusted: {plain_line(cause.verify_message, 120)}",
                    hint="check the address; SSL_CERT_FILE names a file with authorities of your own",
                )
            if isinstance(cause, ssl.SSLError):
                return EngineUnavailable(
                    f"{self.name} does not speak https", hint="check the address, or begin it with http://"
                )
            if isinstance(cause, socket.gaierror):
                return EngineUnavailable(
                    f"there is no machine called {self.address.host}",
                    hint="check the address and the network",
                )
            if isinstance(cause, ConnectionRefusedError):
                return EngineUnavailable(
                    f"nothing answers at {self.name}", hint="check that the server runs, and its port"
                )
        if isinstance(error, httpx.ConnectTimeout):
            return EngineUnavailable(
                f"{self.name} cannot be reached", hint="check the address, a firewall, a VPN that is off"
            )
        if isinstance(error, httpx.TimeoutException):
            return EngineUnavailable(
                f"{self.name} says nothing any more", hint="ask again; a busy server may need longer"
            )
        if isinstance(error, httpx.ConnectError):
            return EngineUnavailable(
                f"{self.name} cannot be reached: {plain_line(str(error), 120)}", hint="check the address"
            )
        return EngineUnavailable(f"{self.name} closed the connection")

    def refusal(self, status: int, headers: Mapping[str, str], content: bytes) -> S2Error:
        try:
            data: Any = json.loads(content)
        except (ValueError, RecursionError):
            data = None
        said = self._said(data) or _page(content)
        if 300 <= status < 400:
            place = self._public(str(headers.get("location", "elsewhere")))
            return BadRequest(f"{self.name} redirects to {place}", hint="give that address if you trust it")
        if status == 401:
            what = "does not take this key" if self.address.key else "wants a key"
            return Unauthorized(f"{self.name} {what}", hint=_NAME_KEY)
        if status == 403:
            return Forbidden(f"{self.name} refuses this{said}", hint="check the key and what it may do")
        if status == 404:
            return ModelError(
                f"{self.name} has no such call or model{said}", hint="check the URL and the model"
            )
        if status == 429:
            after = plain_line(str(headers.get("retry-after", "")), 40)
            when = f"ask again in {after} s" if after.isdecimal() else "ask again later"
            return Busy(f"{self.name} takes no more requests for now{said}", hint=when)
        if status == 503 and "loading" in said.lower():
            return EngineUnavailable(f"{self.name} is loading its model", hint="ask again in a moment")
        return self._failed(status, data, said)

    def _failed(self, status: int, data: Any, said: str) -> S2Error:
        if _is_ours(data):
            return self._ours(data)
        if status in (400, 413, 422):
            return self._wrong(said)
        if status in (502, 503, 504):
            return EngineUnavailable(f"{self.name} is not there for now ({status}){said}", hint=_ASK_LATER)
        return S2Error(f"{self.name} failed ({status}){said}", hint=_ASK_LATER)

    def _wrong(self, said: str) -> S2Error:
        if any(words in said.lower() for words in _TOO_LONG):
            return ContextFull(f"the conversation is too long for {self.name}{said}", hint="start a new chat")
        return BadRequest(f"{self.name} refuses the request{said}")

    def told(self, data: Any) -> S2Error:
        if _is_ours(data):
            return self._ours(data)
        said = self._said(data)
        if any(words in said.lower() for words in _TOO_LONG):
            return self._wrong(said)
        return S2Error(f"{self.name} failed{said}", hint=_ASK_LATER)

    def odd(self, what: str) -> S2Error:
        hint = "check the URL" if what == "a web page" else ""
        return Garbled(f"{self.name} sent something that is no answer: {self._public(what)}", hint)

    def _ours(self, data: Any) -> S2Error:
        error = error_from_json(data)
        return type(error)(self._public(error.message), hint=self._public(error.hint))

    def _said(self, data: Any) -> str:
        """The server's own words behind a colon, "" for none."""
        detail = data.get("error", data) if isinstance(data, dict) else None
        if isinstance(detail, dict):
            words = [detail.get(name) for name in ("message", "detail", "type", "code")]
            detail = next((word for word in words if word), None)
        if isinstance(detail, (list, dict)):  # FastAPI's list of what is wrong with which field
            detail = json.dumps(detail)
        said = self._public(detail) if isinstance(detail, str) else ""
        return f": {said}" if said else ""

    def _public(self, text: str) -> str:
        """`text` of the server without the key, which some repeat."""
        return plain_line(text.replace(self.address.key, "(key)") if self.address.key else text)


def _client(address: Address, headers: Mapping[str, str]) -> httpx.AsyncClient:
    try:
        return httpx.AsyncClient(
            base_url=address.root,
            headers=headers,
            verify=_authorities() if address.root.startswith("https") else False,
            follow_redirects=False,
            # Proxies of the environment are for other machines.
            trust_env=not address.is_loopback,
            limits=httpx.Limits(max_keepalive_connections=0),
        )
    except (httpx.InvalidURL, ImportError, ValueError) as error:
        said = plain_line(str(error), 200)
        raise BadRequest(
            f"{address.place} cannot be asked: {said}", hint="check its URL and the proxy of the environment"
        ) from None


def _is_ours(data: Any) -> bool:
    detail = data.get("error") if isinstance(data, dict) else None
    return isinstance(detail, dict) and "hint" in detail and isinstance(detail.get("code"), str)


def _page(content: bytes) -> str:
    return " (a web page)" if content.lstrip()[:1] == b"<" else ""


def _authorities() -> ssl.SSLContext:
    """Whom browsers trust, and whom this machine does, SSL_CERT_FILE included."""
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """`error` and what led to it, groups opened."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or one in seen:
            continue
        seen.append(one)
        yield one
        waiting += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]
