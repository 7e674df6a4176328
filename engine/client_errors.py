"""Turns the engine's error objects back into the exceptions they stand for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine import errors

_KINDS: dict[str, type[errors.S2Error]] = {
    kind.code: kind
    for kind in (
        errors.ModelError,
        errors.NativeError,
        errors.BadRequest,
        errors.ContextFull,
        errors.Forbidden,
        errors.Unauthorized,
        errors.Busy,
        errors.EngineUnavailable,
        errors.Cancelled,
    )
}


def error_from_json(body: object) -> errors.S2Error:
    """The error an `{"error": {"code", "message", "hint"}}` object stands for."""
    detail = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(detail, Mapping):
        return errors.S2Error("the engine answered with an error it did not explain")
    kind = _KINDS.get(str(detail.get("code")), errors.S2Error)
    return kind(str(detail.get("message", "unknown error")), hint=str(detail.get("hint") or ""))


def error_from_reply(content: bytes) -> errors.S2Error:
    try:
        body: Any = json.loads(content)
    except ValueError:
        body = None
    return error_from_json(body)
