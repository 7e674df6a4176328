"""Stands in for the engine on its socket and streams a given text at a given rate.

The interface is measured at a rate that no machine's model keeps exactly. All that it sees is the engine's
own protocol: handshake, load, telemetry, counts, and an answer with one event per token.
"""

from __future__ import annotations

import json
import os
import socketserver
import threading
import time
import uuid
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from engine.events import Timings
from engine.messages import API_VERSION, PING_S, ModeCard, ModelCard, PlanCard, Settings, Snapshot
from engine.paths import EMBEDDED_MODEL, Paths, private_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CONTEXT = 32_768
_PROMPT_TOKENS = 32


class Stand:
    """`tokens` is what every question is answered with, `rate` of them a second. `streamed` counts them."""

    def __init__(self, tokens: Sequence[str], rate: float) -> None:
        self.tokens = tokens
        self.rate = rate
        self.streamed = 0
        self.instance = uuid.uuid4().hex
        self.over = threading.Event()

    @property
    def text(self) -> str:
        return "".join(self.tokens)

    def handshake(self) -> dict[str, Any]:
        return {
            "api": list(API_VERSION),
            "build": "bench",
            "instance": self.instance,
            "pid": os.getpid(),
            "model": "ready",
        }

    def snapshot(self) -> dict[str, Any]:
        """The engine's state with the model loaded."""
        model = ModelCard(
            str(EMBEDDED_MODEL), "bench", "qwen3moe", 1 << 30, _CONTEXT, _CONTEXT, 32, 8, is_moe=True
        )
        return asdict(
            Snapshot(
                instance=self.instance,
                state="ready",
                progress=1.0,
                error=None,
                model=model,
                plan=PlanCard(_CONTEXT, 1, 512),
                settings=Settings("ar", 2, 4),
                modes=(ModeCard("ar", exact=True, drafts=False, summary="plain decode"),),
                notices=(),
                running=0,
                queued=0,
                clients=1,
                timings=None,
                rss_bytes=1 << 30,
            )
        )

    def answer(self) -> Iterator[tuple[dict[str, Any], float]]:
        """The events of an answer, each with the seconds after the first at which it is due."""
        yield _chunk({"role": "assistant", "content": ""}), 0.0
        for number, token in enumerate(self.tokens, 1):
            due = number / self.rate
            timings = Timings(
                prompt_n=_PROMPT_TOKENS,
                prompt_ms=100.0,
                predicted_n=number,
                predicted_ms=1e3 * due,
                verify_n=number,
                context_n=_PROMPT_TOKENS + number,
            )
            yield _chunk({"content": token}) | {"tokens": [number], "timings": timings.as_json()}, due
            self.streamed = number
        yield _chunk({}, "stop") | {"s2": {"finish": "eos", "mode": "ar"}}, len(self.tokens) / self.rate


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "model": "bench", "choices": [choice]}


@contextmanager
def standing(stand: Stand, paths: Paths) -> Iterator[Stand]:
    """`stand` answers on the engine's socket of `paths` meanwhile."""
    handler = type("Handler", (_Handler,), {"stand": stand})
    private_dir(paths.socket.parent)
    server = _Server(str(paths.socket), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield stand
    finally:
        stand.over.set()
        server.shutdown()
        server.server_close()
        thread.join()
        paths.socket.unlink(missing_ok=True)


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """The interface leaves in the middle of streams; that is no error of the bench."""


class _Handler(BaseHTTPRequestHandler):
    stand: Stand
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def address_string(self) -> str:
        return "socket"  # a Unix socket's client has no address

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/handshake":
            self._send(self.stand.handshake())
        elif path == "/telemetry":
            self._telemetry()
        else:
            self._send({"error": {"code": "not_found", "message": path, "hint": ""}}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if self.path == "/v1/chat/completions":
            self._chat()
        elif self.path == "/count":
            words = sum(len(message["content"].split()) for message in body.get("messages", ()))
            self._send({"tokens": words})
        else:  # load, cancel, watch, settings
            self._send({"state": "ready", "cancelled": False, "watched": True})

    def _telemetry(self) -> None:
        self._start_events()
        self._event(self.stand.snapshot())
        while not self.stand.over.wait(PING_S):
            self.wfile.write(b": ping\n\n")

    def _chat(self) -> None:
        self._start_events()
        started = time.monotonic()
        for event, due in self.stand.answer():
            if self.stand.over.wait(max(0.0, started + due - time.monotonic())):
                return
            self._event(event)
        self.wfile.write(b"data: [DONE]\n\n")

    def _start_events(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()

    def _event(self, data: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

    def _send(self, data: dict[str, Any], status: int = 200) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
