"""A toy gpt-oss that speaks Harmony: the real special tokens, and a template like its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from families import FAMILIES, write_family

from engine.session import Session

SPECIAL = (
    *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
    *("<|return|>", "<|call|>"),
)

#: What gpt-oss's own does, in fewer words: earlier thoughts are told only while a call waits for its answer.
TEMPLATE = """\
<|start|>system<|message|>Reasoning: {{ reasoning_effort | default("medium") }}
{%- if tools %} # Tools {% for tool in tools %}{{ tool.function.name }} {% endfor %}{% endif -%}
<|end|>
{%- for m in messages -%}
{%- if "<|channel|>analysis<|message|>" in m.content %}{{ raise_exception("marks") }}{% endif -%}
{%- if m.role == "assistant" and m.tool_calls -%}
{%- if m.content and m.thinking %}{{ raise_exception("content and thinking") }}{% endif -%}
{%- if m.thinking and loop.index0 >= messages | length - 2 -%}
<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>
{%- endif -%}
{%- set call = m.tool_calls[0].function -%}
<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>
{{- call.arguments | tojson }}<|call|>
{%- elif m.role == "assistant" -%}
<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>
{%- elif m.role == "tool" -%}
<|start|>functions.weather to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>
{%- else -%}
<|start|>{{ "developer" if m.role == "system" else m.role }}<|message|>{{ m.content }}<|end|>
{%- endif -%}
{%- endfor -%}
<|start|>assistant"""


def write_harmony(path: Path) -> Path:
    return write_family(path, FAMILIES["gpt-oss"], special=SPECIAL, template=TEMPLATE)


def ids(session: Session, text: str) -> list[int]:
    """The tokens a model would write `text` with, names of special tokens meaning those."""
    found: list[int] = []
    for part in re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text):
        special = session.vocab.special(part) if part in SPECIAL else None
        plain = session.vocab.tokenize(part, add_special=False, parse_special=False, continues=True)
        found += plain if special is None else [special]
    return found


def written(session: Session, tokens: Sequence[int]) -> str:
    """The tokens as they read, special ones by their names."""
    return b"".join(session.vocab.piece(t) or session.vocab.name(t).encode() for t in tokens).decode()
