"""Pieces of HTTP serving: bodies with a limit, JSON answers, and responses that end when the client goes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from engine.errors import BadRequest, S2Error
from engine.fields import parse_object
from engine.replies import dumps, error_object
from engine.together import until_one_ends

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.requests import Request
    from starlette.types import Message, Receive, Send

MAX_BODY_BYTES = 64 << 20
_LARGE_BODY_BYTES = 256 << 10

EVENT_STREAM_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")],
}


class TooLarge(BadRequest):
    code = "too_large"
    status = 413


class NoSuchModel(BadRequest):
    code = "model_not_found"  # OpenAI's word
    status = 404


def answer(body: object, status: int = 200) -> Response:
    return Response(dumps(body), status, media_type="application/json")


def error_answer(error: S2Error) -> Response:
    return answer(error_object(error), error.status)


async def read_object(request: Request) -> dict[str, Any]:
    """The JSON object of the request's body; an empty body is an empty object."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise TooLarge(f"the body is larger than {MAX_BODY_BYTES >> 20} MiB")
    if not body:
        return {}
    if len(body) < _LARGE_BODY_BYTES:
        return parse_object(bytes(body))
    return await asyncio.to_thread(parse_object, bytes(body))


async def while_connected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` to its end, or cancels it as soon as the client is gone."""
    await until_one_ends(work, _disconnected(receive))


async def send_events(send: Send, events: bytes, *, last: bool = False) -> None:
    await send({"type": "http.response.body", "body": events, "more_body": not last})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
