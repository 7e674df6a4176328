"""The calls of the engine's HTTP interface."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route

from engine.answering import JobResponse
from engine.call import parse_chat, parse_completion, parse_count
from engine.cards import budget, handshake, model_list, model_name, settings
from engine.errors import BadRequest, EngineUnavailable, S2Error
from engine.fields import Fields
from engine.listening import ListenResponse
from engine.messages import CLIENT_HEADER
from engine.metrics import CONTENT_TYPE, metrics_text
from engine.openapi import description
from engine.serving import NoSuchModel, answer, error_answer, read_object
from engine.telemetry import TelemetryResponse
from engine.wire import (
    parse_budget_change,
    parse_detokenize,
    parse_load,
    parse_settings,
    parse_tokenize,
    parse_watch,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from starlette.requests import Request

    from engine.call import Call
    from engine.session import Session
    from engine.state import EngineState

_HEALTH = {"ready": "ok", "empty": "no model"}


def create_app(state: EngineState, token_file: Path | None = None) -> Starlette:
    """All calls, for the socket that only this user can reach. `token_file`: needed to open TCP ports."""
    calls = Calls(state, token_file)
    return _app(
        [
            *_public(calls),
            *_looks(calls),
            Route("/load", calls.load, methods=["POST"]),
            Route("/settings", calls.settings, methods=["GET", "POST"]),
            Route("/budget", calls.budget, methods=["GET", "POST"]),
            Route("/listen", calls.listen, methods=["POST"]),
            Route("/shutdown", calls.shutdown, methods=["POST"]),
        ]
    )


def _public(calls: Calls) -> list[Route]:
    """What other programs need, and `engine.openapi` describes."""
    return [
        Route("/health", calls.health),
        Route("/metrics", calls.metrics),
        Route("/openapi.json", calls.openapi),
        Route("/v1/models", calls.models),
        Route("/v1/models/{name:path}", calls.model),
        Route("/v1/chat/completions", calls.chat, methods=["POST"]),
        Route("/v1/completions", calls.completion, methods=["POST"]),
        Route("/count", calls.count, methods=["POST"]),
        Route("/tokenize", calls.tokenize, methods=["POST"]),
        Route("/detokenize", calls.detokenize, methods=["POST"]),
        Route("/cancel", calls.cancel, methods=["POST"]),
        Route("/watch", calls.watch, methods=["POST"]),
    ]


def _looks(calls: Calls) -> list[Route]:
    """What our own interface asks for besides, from elsewhere too: it shows the engine and rules nothing."""
    return [Route("/handshake", calls.handshake), Route("/telemetry", calls.telemetry)]


def _app(routes: list[Route]) -> Starlette:
    handlers: Any = {S2Error: _s2_error, HTTPException: _http_error, ClientDisconnect: _gone}
    return Starlette(routes=routes, exception_handlers=handlers)


class Calls:
    def __init__(self, state: EngineState, token_file: Path | None) -> None:
        self._state = state
        self._token_file = token_file

    async def handshake(self, request: Request) -> Response:
        if self._state.leaving.is_set():
            raise EngineUnavailable("the engine is leaving")
        if "attach" in request.query_params:
            self._state.uses += 1  # this client is about to open a stream; do not leave meanwhile
        return answer(handshake(self._state))

    async def health(self, _: Request) -> Response:
        state = self._state.state
        body = {"status": _HEALTH.get(state, state), "error": self._state.error}
        return answer(body, 200 if state == "ready" else 503)

    async def load(self, request: Request) -> Response:
        load = await asyncio.to_thread(parse_load(await read_object(request)).stamped)
        started = self._state.load(load, _client(request))
        return answer({"state": self._state.state}, 202 if started else 200)

    async def models(self, _: Request) -> Response:
        return answer({"object": "list", "data": model_list(self._state)})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        for card in model_list(self._state):
            if card["id"] == name:
                return answer(card)
        raise NoSuchModel(f"no model {name!r} is loaded", hint="GET /v1/models names the one that is")

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, parse_chat)

    async def completion(self, request: Request) -> Response:
        return await self._generate(request, parse_completion)

    async def count(self, request: Request) -> Response:
        call = parse_count(await read_object(request))
        loaded = self._state.loaded
        tokens = await self._state.count(call)
        return answer({"tokens": tokens, "n_ctx": 0 if loaded is None else loaded.n_ctx})

    async def tokenize(self, request: Request) -> Response:
        content, add_special, parse_special = parse_tokenize(await read_object(request))

        def tokens(session: Session) -> list[int]:
            session.vocab.check_fits(content, session.n_ctx)
            return session.vocab.tokenize(content, add_special=add_special, parse_special=parse_special)

        return answer({"tokens": await self._state.ask(tokens)})

    async def detokenize(self, request: Request) -> Response:
        ids = parse_detokenize(await read_object(request))
        return answer({"content": await self._state.ask(lambda session: session.vocab.text_of(ids))})

    async def metrics(self, _: Request) -> Response:
        return Response(metrics_text(self._state), media_type=CONTENT_TYPE)

    async def openapi(self, _: Request) -> Response:
        return answer(description())

    async def listen(self, request: Request) -> Response:
        if self._token_file is None:
            raise BadRequest("this engine opens no ports")
        app = _app([*_public(self), *_looks(self)])
        return ListenResponse(
            self._state, app, self._token_file, await read_object(request), _client(request)
        )

    async def cancel(self, request: Request) -> Response:
        name = Fields(await read_object(request)).text("request_id")
        if not name:
            raise BadRequest("request_id is missing")
        return answer({"cancelled": self._state.cancel(name)})

    async def watch(self, request: Request) -> Response:
        return answer({"watched": self._state.watch(*parse_watch(await read_object(request)))})

    async def settings(self, request: Request) -> Response:
        if request.method == "POST":
            self._state.change_settings(parse_settings(await read_object(request)))
        return answer(settings(self._state))

    async def budget(self, request: Request) -> Response:
        notice = ""
        if request.method == "POST":
            notice = await self._state.change_budget(parse_budget_change(await read_object(request)))
        return answer(budget(self._state, notice))

    async def telemetry(self, request: Request) -> Response:
        return TelemetryResponse(self._state, _client(request))

    async def shutdown(self, _: Request) -> Response:
        self._state.leave()
        return answer({"leaving": True})

    async def _generate(self, request: Request, parse: Callable[[Mapping[str, Any]], Call]) -> Response:
        body = await read_object(request)
        lane = _client(request) or body.get("user")
        job = self._state.submit(parse(body), lane if isinstance(lane, str) else "")
        return JobResponse(self._state, job, model_name(self._state))


def _client(request: Request) -> str:
    return request.headers.get(CLIENT_HEADER, "")


async def _s2_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, S2Error)
    return error_answer(error)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    wrong = BadRequest("no such call" if error.status_code == 404 else str(error.detail))
    return Response(error_answer(wrong).body, error.status_code, error.headers, "application/json")


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=499)
