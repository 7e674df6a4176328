"""A small HTTP server that tests can make misbehave."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers by `answer`, which gets the request's body and finds the rest in the attributes."""

    protocol_version = "HTTP/1.1"

    def answer(self, body: bytes) -> None:
        raise NotImplementedError

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers.get("content-length", 0))))

    def send_head(self, status: int, headers: Mapping[str, object]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, str(value))
        self.end_headers()


@contextmanager
def running(
    handler: type[Handler],
    over: threading.Event,
    *,
    certificate: Path | None = None,
    port: int = 0,
    host: str = "127.0.0.1",
    **fields: Any,
) -> Iterator[str]:
    """Its URL. `fields` are the handler's own; `over` is set at the end, so that those that hang let go.

    `certificate`: a PEM file with certificate and key, for https.
    """
    own = type("Handler", (handler,), fields)
    server = (_Server6 if ":" in host else _Server)((host, port), own)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    name = f"[{host}]" if ":" in host else host
    try:
        yield f"http{'s' if certificate else ''}://{name}:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Clients that leave are what these tests are about."""


class _Server6(_Server):
    address_family = socket.AF_INET6
