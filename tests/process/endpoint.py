"""The endpoint that other programs use, opened for a test, and what they ask it for."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from test_server import Stream

from engine.launcher import Handle

TOOL_TEMPLATE = (
    "{% if tools %}<|im_start|>tools, to be called as <tool_call>: {{ tools | tojson }}<|im_end|>{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>"
    "{% endfor %}<|im_start|>"
)
PICK: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "pick",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}},
            "required": ["colour", "sure"],
        },
    },
}
BOOK = {
    "type": "object",
    "properties": {"title": {"type": "string", "maxLength": 12}, "kind": {"enum": ["novel", "poem"]}},
    "required": ["title", "kind"],
    "additionalProperties": False,
}
ORIGIN = "http://localhost:3000"


@contextmanager
def listening(engine: Handle, **body: Any) -> Iterator[tuple[int, str]]:
    """The port and the token of an endpoint that is open meanwhile."""
    opened = Stream(engine, {"port": 0, **body}, "/listen")
    try:
        place = next(opened.events())
        assert place["host"] == "127.0.0.1"
        yield place["port"], Path(place["token_file"]).read_text().strip()
    finally:
        opened.close()


def get(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[int, Any, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=named)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, body, reply.headers
