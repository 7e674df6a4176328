"""A server that speaks the plain OpenAI dialect, and breaks it in the ways such servers do."""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from httpserver import Handler, running

STANDARD = {
    *("model", "messages", "stream", "stream_options", "temperature", "top_p", "max_tokens", "stop", "seed"),
    *("presence_penalty", "frequency_penalty"),
}


def event(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    chunk = {"id": "c", "object": "chat.completion.chunk", "choices": [choice], **more}
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n".encode()


def words(*pieces: str) -> list[bytes]:
    """An answer of `pieces` with its role, its end, its usage and [DONE]."""
    usage = {"prompt_tokens": 11, "completion_tokens": len(pieces), "total_tokens": 11 + len(pieces)}
    return [
        event({"role": "assistant", "content": ""}),
        *(event({"content": piece}) for piece in pieces),
        event(finish="stop"),
        f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode(),
    ]


class OpenAI:
    """`answer`: what a chat gets, piece by piece. `fields`: those it takes, None for any.

    `status` and `content`: what every chat gets instead. `cut`: the connection breaks behind the answer.
    `stalls`: it then says nothing more. `gone`: a client left before the end, and when.
    """

    def __init__(self, *models: str, owner: str = "test") -> None:
        self.models = [{"id": name, "object": "model", "owned_by": owner} for name in models]
        self.props: dict[str, Any] | None = None
        self.pages: dict[str, bytes] = {}  # what else it answers
        self.prefix = ""
        self.key = ""
        self.redirects_to = ""
        self.answer: Sequence[bytes] = words("Hello", " there.")
        self.fields: set[str] | None = STANDARD
        self.kind = "text/event-stream"
        self.status = 200
        self.headers: dict[str, str] = {}
        self.content: bytes | None = None
        self.listing: bytes | None = None
        self.cut = self.stalls = False
        self.pause_s = 0.0
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.gone = threading.Event()
        self.gone_at = 0.0
        self.over = threading.Event()
        self.url = ""

    @property
    def chats(self) -> list[dict[str, Any]]:
        """The bodies of all requests for an answer."""
        return [body for path, _, body in self.asked if path.endswith("completions")]


class _Handler(Handler):
    server_state: OpenAI

    def answer(self, content: bytes) -> None:
        state, body = self.server_state, json.loads(content or b"{}")
        state.asked.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        path = self.path.removeprefix(state.prefix) if self.path.startswith(state.prefix) else ""
        if state.redirects_to:
            self._send(307, b"", "text/plain", {"Location": state.redirects_to + self.path})
        elif state.key and self.headers.get("authorization") != f"Bearer {state.key}":
            self._error(401, f"Incorrect API key provided: {self.headers.get('authorization')}")
        elif path == "/v1/models":
            listing = json.dumps({"object": "list", "data": state.models}).encode()
            self._send(200, state.listing or listing, "application/json")
        elif path in state.pages:
            kind = "text/event-stream" if state.pages[path].startswith(b"data:") else "application/json"
            self._send(200, state.pages[path], kind)
        elif path == "/props" and state.props is not None:
            self._send(200, json.dumps(state.props).encode(), "application/json")
        elif path == "/v1/chat/completions":
            self._chat(body)
        else:
            self._error(404, "Not Found")

    def _chat(self, body: dict[str, Any]) -> None:
        state = self.server_state
        unknown = sorted(set(body) - state.fields) if state.fields is not None else []
        if unknown:
            self._error(400, f"Unrecognized request argument supplied: {unknown[0]}")
        elif state.content is not None:
            self._send(state.status, state.content, "text/html", state.headers)
        elif state.status != 200:
            self._error(state.status, "it said \x1b[31mso\x07", state.headers)
        else:
            self._stream()

    def _stream(self) -> None:
        state = self.server_state
        self.send_head(200, {"content-type": state.kind, "transfer-encoding": "chunked"})
        try:
            for piece in state.answer:
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                self.wfile.flush()
                self._watch(state.pause_s)
            while state.stalls and not state.over.is_set():
                self._watch(0.02)
            if not state.cut:
                self.wfile.write(b"0\r\n\r\n")
        except ConnectionError:
            state.gone_at = time.monotonic()
            state.gone.set()
        self.close_connection = True

    def _watch(self, seconds: float) -> None:
        """Waits, and notices a client that has left."""
        readable, _, _ = select.select([self.connection], [], [], seconds)
        if readable and not self.connection.recv(1, socket.MSG_PEEK):
            raise ConnectionResetError

    def _error(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        error = {"error": {"message": message, "type": "some_error", "param": None, "code": None}}
        self._send(status, json.dumps(error).encode(), "application/json", headers)

    def _send(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_head(status, {"content-type": kind, "content-length": len(body), **(headers or {})})
        with suppress(ConnectionError):
            self.wfile.write(body)


@contextmanager
def serving(
    state: OpenAI, certificate: Path | None = None, port: int = 0, host: str = "127.0.0.1"
) -> Iterator[OpenAI]:
    """`certificate`: a PEM file with certificate and key, for https."""
    where: dict[str, Any] = {"certificate": certificate, "port": port, "host": host}
    with running(_Handler, state.over, server_state=state, **where) as state.url:
        yield state
