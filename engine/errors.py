"""What can go wrong, in words a person can act on.

S2Error                    message: what and why; hint: what to do
├── ModelError             a model file that is missing, unreadable or cannot run here
├── NativeError            the native library is missing, foreign, or failed in a call
├── BadRequest             a request that makes no sense as it stands
├── ContextFull            a prompt that does not fit the context
├── Forbidden              a request from where none may come
├── Unauthorized           a request over TCP without the token
├── Busy                   the engine serves someone else and cannot do this now
├── EngineUnavailable      the engine process cannot be reached or started
│   └── EngineCrashed      the engine process died; `cause` says how
└── Cancelled              the work was stopped on request
"""

# ruff: noqa: N818 -- names say what happened; that they are errors the tree above says
from __future__ import annotations


class S2Error(Exception):
    """Base of every error the project raises on purpose."""

    code = "error"
    status = 500

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def line(self) -> str:
        """The error in one line, the hint behind it."""
        return f"{self.message} ({self.hint})" if self.hint else self.message


class ModelError(S2Error):
    code = "model_error"
    status = 422


class NativeError(S2Error):
    code = "native_error"


class BadRequest(S2Error):
    code = "bad_request"
    status = 400


class ContextFull(S2Error):
    code = "context_full"
    status = 400

    @classmethod
    def for_prompt(cls, tokens: str, n_ctx: int) -> ContextFull:
        """A prompt of so many `tokens` is too long."""
        return cls(
            f"the prompt has {tokens} tokens, the context holds {n_ctx}",
            hint="start a new chat, shorten the prompt, or load with a larger -c",
        )


class Forbidden(S2Error):
    code = "forbidden"
    status = 403


class Unauthorized(S2Error):
    code = "unauthorized"
    status = 401


class Busy(S2Error):
    code = "busy"
    status = 409


class EngineUnavailable(S2Error):
    code = "engine_unavailable"
    status = 503


class EngineCrashed(EngineUnavailable):
    code = "engine_crashed"


class Cancelled(S2Error):
    code = "cancelled"
    status = 499
