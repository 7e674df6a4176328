"""One turn of a conversation, as requests carry it and templates see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

THOUGHT = "reasoning_content"


@dataclass(frozen=True, slots=True)
class Message:
    """`role` is system, user or assistant (or what else the model's template knows).

    `more`: what a template may want besides, as OpenAI names it: tool_calls, tool_call_id, name; and THOUGHT.
    """

    role: str
    content: str
    more: Mapping[str, Any] = field(default_factory=dict)
