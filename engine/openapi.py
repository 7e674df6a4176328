"""What other programs may ask the engine for, in OpenAPI's words."""

from __future__ import annotations

from typing import Any

from engine import __version__
from engine.request import EFFORTS, MAX_DRAFT_LENGTH, MODES

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_ANY = {"type": "object"}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}}


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
            "/health": _get("Whether a model is loaded; needs no token", _ANY),
            "/metrics": _get("Counts for Prometheus, under llama-server's names", _TEXT, "text/plain"),
            "/openapi.json": _get("This description", _ANY),
            "/v1/models": _get("The loaded model", _ANY),
            "/v1/chat/completions": _post("An answer in a conversation", _chat(), stream=True),
            "/v1/completions": _post("A text that goes on", _completion(), stream=True),
            "/count": _post(
                "Tokens of a prompt, exactly", _object({"messages": _messages(), "prompt": _TEXT})
            ),
            "/tokenize": _post(
                "Text to token ids",
                _object({"content": _TEXT, "add_special": _FLAG, "parse_special": _FLAG}, "content"),
            ),
            "/detokenize": _post("Token ids to text", _object({"tokens": _TOKENS}, "tokens")),
            "/cancel": _post("Ends a request", _object({"request_id": _TEXT}, "request_id")),
            "/watch": _post(
                "Has a running request show its blocks, or no longer",
                _object({"request_id": _TEXT, "blocks": _FLAG}, "request_id", "blocks"),
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
        "max_tokens": _whole(-1, 1 << 20),
        "max_completion_tokens": _whole(-1, 1 << 20),
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
        "user": _TEXT,
        "request_id": {"type": "string", "minLength": 1, "maxLength": 128},
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


def _get(summary: str, schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    return {"get": {"summary": summary, "responses": _responses({kind: {"schema": schema}})}}


def _post(summary: str, schema: dict[str, Any], *, stream: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _ANY}}
    if stream:
        content["text/event-stream"] = {"schema": _TEXT}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"post": {"summary": summary, "requestBody": body, "responses": _responses(content)}}


def _responses(content: dict[str, Any]) -> dict[str, Any]:
    error = _object({"code": _TEXT, "message": _TEXT, "hint": _TEXT, "type": _TEXT}, "code", "message")
    problem = {"application/json": {"schema": _object({"error": error}, "error")}}
    return {
        "200": {"description": "done", "content": content},
        "default": {"description": "why not", "content": problem},
    }
