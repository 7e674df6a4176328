"""What other programs may ask the engine for, in OpenAPI's words."""

from __future__ import annotations

from typing import Any

from engine import __version__
from engine.request import EFFORTS, MAX_DRAFT_LENGTH, MODES

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_ANY = {"type": "object"}
_COUNT = {"type": "integer", "minimum": 0}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}}
_MOST = {"type": "integer", "anyOf": [{"minimum": 1}, {"const": -1}]}  # tokens; -1 is as many as fit
_REQUEST = {"type": "string", "minLength": 1, "maxLength": 128}

_REASONS = {
    400: "it makes no sense as it stands, is not offered, or does not fit the context",
    401: "the token is missing or wrong",
    403: "another host's name, or a web page that was not let in",
    404: "no model of that name",
    413: "the body is too large",
    422: "the model's file was changed or cannot be read",
    500: "a fault of the engine",
    503: "no model is loaded",
}


def description() -> dict[str, Any]:
    """OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "s2chat",
            "version": __version__,
            "description": "The OpenAI protocol with llama.cpp's and our extras. What is not described is "
            "refused where it would change an answer.",
        },
        "paths": {
            "/health": _health(),
            "/metrics": _get("Counts for Prometheus, under llama-server's names", _TEXT, "text/plain"),
            "/openapi.json": _get("This description", _ANY),
            "/v1/models": _get(
                "The loaded model", _object({"data": {"type": "array", "items": _model()}}, "data")
            ),
            "/v1/models/{name}": _model_of_a_name(),
            "/v1/chat/completions": _post(
                "An answer in a conversation", _chat(), _answer("message"), stream=True
            ),
            "/v1/completions": _post("A text that goes on", _completion(), _answer("text"), stream=True),
            "/count": _post(
                "Tokens of a prompt, exactly",
                _object({"messages": _messages(), "prompt": _TEXT}),
                _object({"tokens": _COUNT, "n_ctx": _COUNT}, "tokens", "n_ctx"),
            ),
            "/tokenize": _post(
                "Text to token ids",
                _object({"content": _TEXT, "add_special": _FLAG, "parse_special": _FLAG}, "content"),
                _object({"tokens": _TOKENS}, "tokens"),
            ),
            "/detokenize": _post(
                "Token ids to text",
                _object({"tokens": _TOKENS}, "tokens"),
                _object({"content": _TEXT}, "content"),
            ),
            "/cancel": _post(
                "Ends a request",
                _object({"request_id": _REQUEST}, "request_id"),
                _object({"cancelled": _FLAG}, "cancelled"),
            ),
            "/watch": _post(
                "Has a running request show its blocks, or no longer",
                _object({"request_id": _REQUEST, "blocks": _FLAG}, "request_id", "blocks"),
                _object({"watched": _FLAG}, "watched"),
            ),
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _chat() -> dict[str, Any]:
    own = {
        "messages": _messages(),
        "logprobs": _FLAG,
        "top_logprobs": _whole(0, 20),
        "tools": {"type": "array", "items": _tool()},
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, _ANY]},
        "parallel_tool_calls": _FLAG,
        "reasoning_format": {"enum": ["auto", "deepseek", "none"]},
        "reasoning_effort": {"enum": list(EFFORTS)},
        "chat_template_kwargs": _object(
            {"enable_thinking": _FLAG, "reasoning_effort": {"enum": list(EFFORTS)}}
        ),
        "continue_final_message": _FLAG,
    }
    return _object({**own, **_common()}, "messages")


def _completion() -> dict[str, Any]:
    return _object({"prompt": _TEXT, "logprobs": _whole(0, 20), **_common()}, "prompt")


def _common() -> dict[str, Any]:
    return {
        "model": _TEXT,
        "n": {"const": 1},
        "stream": _FLAG,
        "stream_options": _object({"include_usage": _FLAG}),
        "max_tokens": _MOST,
        "max_completion_tokens": _MOST,
        "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": 64}]},
        "seed": _whole(-1, (1 << 32) - 1),
        "temperature": _number(0, 100),
        "top_k": _whole(0, 1 << 30),
        "top_p": _number(0, 1),
        "min_p": _number(0, 1),
        "repeat_penalty": _number(0.01, 100),
        "repeat_last_n": _whole(-1, 1 << 30),
        "presence_penalty": _number(-100, 100),
        "frequency_penalty": _number(-100, 100),
        "ignore_eos": _FLAG,
        "response_format": _format(),
        "mode": {"enum": list(MODES)},
        "draft_experts": _whole(1, 1 << 16),
        "draft_length": _whole(0, MAX_DRAFT_LENGTH),
        "cap": _whole(1, 1 << 16),
        "resident_only": _FLAG,
        "prefetch": _FLAG,
        "user": _TEXT,
        "request_id": _REQUEST,
        "return_tokens": _FLAG,
        "return_blocks": _FLAG,
        "return_progress": _FLAG,
        "timings_per_token": _FLAG,
    }


def _format() -> dict[str, Any]:
    schema = _object({"name": _TEXT, "schema": _ANY, "strict": _FLAG}, "schema")
    return {
        "anyOf": [
            _object({"type": {"enum": ["text", "json_object"]}}, "type"),
            _object({"type": {"const": "json_schema"}, "json_schema": schema}, "type", "json_schema"),
        ]
    }


def _messages() -> dict[str, Any]:
    part = _object({"type": {"const": "text"}, "text": _TEXT}, "type", "text")
    message = {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [_TEXT, {"type": "array", "items": part}]},
        "tool_calls": {"type": "array", "items": _ANY},
        "tool_call_id": _TEXT,
    }
    return {"type": "array", "minItems": 1, "items": _object(message, "role", "content")}


def _tool() -> dict[str, Any]:
    function = _object({"name": _TEXT, "description": _TEXT, "parameters": _ANY}, "name")
    return _object({"type": {"const": "function"}, "function": function}, "type", "function")


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _whole(low: int, high: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high}


def _number(low: float, high: float) -> dict[str, Any]:
    return {"type": "number", "minimum": low, "maximum": high}


def _health() -> dict[str, Any]:
    state = {
        "status": {"enum": ["ok", "loading", "no model", "error"]},
        "error": {"type": ["string", "null"]},
    }
    content = {"application/json": {"schema": _object(state, "status", "error")}}
    found = {
        "200": {"description": "ready", "content": content},
        "503": {"description": "not yet", "content": content},
    }
    what = {
        "summary": "Whether a model is loaded; needs no token",
        "security": [],
        "responses": found | _refusals(403),
    }
    return {"get": what}


def _model() -> dict[str, Any]:
    return _object(
        {"id": _TEXT, "object": {"const": "model"}, "owned_by": _TEXT, "meta": _ANY}, "id", "object"
    )


def _model_of_a_name() -> dict[str, Any]:
    name = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
    found = _get("The loaded model, if that is its name", _model())
    found["get"] |= {"parameters": [name], "responses": found["get"]["responses"] | _refusals(404)}
    return found


def _answer(kind: str) -> dict[str, Any]:
    """Of a choice `kind` is what OpenAI calls the answer itself."""
    choice = _object(
        {"index": _COUNT, "finish_reason": {"enum": ["stop", "length", "tool_calls"]}, kind: {}}, kind
    )
    usage = _object(
        {"prompt_tokens": _COUNT, "completion_tokens": _COUNT, "total_tokens": _COUNT}, "total_tokens"
    )
    own = {
        "id": _TEXT,
        "model": _TEXT,
        "choices": {"type": "array", "items": choice},
        "usage": usage,
        "timings": _ANY,
    }
    return _object(own, "id", "choices", "usage", "timings")


def _get(summary: str, schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    done = {"200": {"description": "done", "content": {kind: {"schema": schema}}}}
    return {"get": {"summary": summary, "responses": done | _refusals(401, 403)}}


def _post(
    summary: str, asked: dict[str, Any], answered: dict[str, Any], *, stream: bool = False
) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": answered}}
    if stream:
        content["text/event-stream"] = {"schema": _object({"data": _TEXT}, "data")}
    body = {"required": True, "content": {"application/json": {"schema": asked}}}
    responses = {"200": {"description": "done", "content": content}, **_refusals(*_REASONS.keys() - {404})}
    return {"post": {"summary": summary, "requestBody": body, "responses": responses}}


def _refusals(*statuses: int) -> dict[str, Any]:
    error = _object({"code": _TEXT, "message": _TEXT, "hint": _TEXT, "type": _TEXT}, "code", "message")
    content = {"application/json": {"schema": _object({"error": error}, "error")}}
    return {str(one): {"description": _REASONS[one], "content": content} for one in sorted(statuses)}
