"""Turns a conversation into the prompt the model was trained on."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import BadRequest
from engine.vocab import Vocab

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. `role` is system, user or assistant (or what else the model's template knows)."""

    role: str
    content: str


class ChatTemplate:
    """The model's own chat template, and how to tokenise what it renders."""

    def __init__(self, source: str, vocab: Vocab) -> None:
        self._vocab = vocab
        self._bos, self._eos = vocab.name(vocab.bos), vocab.name(vocab.eos)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise BadRequest(f"the model's chat template cannot be read: {error}") from error

    def tokenize(
        self, messages: Sequence[Message], replies: Mapping[str, tuple[int, ...]]
    ) -> tuple[int, ...]:
        """The prompt that asks for the next answer.

        What people wrote never becomes a special token, and answers of ours (`replies`: text to the
        ids it was generated as) keep their ids, so that their KV cells can be used again.
        Raises BadRequest with the template's reason when it refuses the conversation.
        """
        text, turns = self._render(messages)
        tokens: list[int] = []
        at = 0
        for turn in turns:
            start = text.find(turn.content, at) if turn.content else -1
            if start < 0:
                continue  # the template changed it: it is tokenised with what surrounds it
            tokens += self._template_tokens(text[at:start], first=not tokens)
            tokens += self._content_tokens(turn, replies)
            at = start + len(turn.content)
        tokens += self._template_tokens(text[at:], first=not tokens)
        return tuple(tokens)

    def _template_tokens(self, text: str, *, first: bool) -> list[int]:
        # A template that writes its own BOS must not get a second one.
        add_special = first and not (self._bos and text.startswith(self._bos))
        return (
            self._vocab.tokenize(text, add_special=add_special, parse_special=True) if text or first else []
        )

    def _content_tokens(self, turn: Message, replies: Mapping[str, tuple[int, ...]]) -> Sequence[int]:
        known = replies.get(turn.content) if turn.role == "assistant" else None
        if known is not None:
            return known
        return self._vocab.tokenize(turn.content, add_special=False, parse_special=False)

    def _render(self, messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
        """The rendered text and the turns in it; turns are reshaped only if the template insists."""
        if not messages:
            raise BadRequest("messages is empty", hint="send at least one message")
        first_refusal = ""
        for reshape in (_as_it_is, _merge_same_role, _fold_system):
            turns = reshape(messages)
            try:
                return self._apply(turns), turns
            except jinja2.TemplateError as error:
                first_refusal = first_refusal or str(error)
            except (TypeError, ValueError, KeyError, RecursionError) as error:
                first_refusal = first_refusal or f"{type(error).__name__}: {error}"
        raise BadRequest(f"the model's chat template refuses this conversation: {first_refusal}")

    def _apply(self, turns: Sequence[Message]) -> str:
        return self._template.render(
            messages=[{"role": turn.role, "content": turn.content} for turn in turns],
            add_generation_prompt=True,
            bos_token=self._bos,
            eos_token=self._eos,
        )


def _as_it_is(messages: Sequence[Message]) -> Sequence[Message]:
    return messages


def _merge_same_role(messages: Sequence[Message]) -> Sequence[Message]:
    """Neighbours of one role become one turn: after a cancelled answer two questions follow each other."""
    turns: list[Message] = []
    for message in messages:
        if turns and turns[-1].role == message.role:
            turns[-1] = Message(message.role, turns[-1].content + "\n\n" + message.content)
        else:
            turns.append(message)
    return turns


def _fold_system(messages: Sequence[Message]) -> Sequence[Message]:
    """System turns move to the head of the user turn that follows, for templates that know no system role."""
    turns: list[Message] = []
    pending: list[str] = []
    for message in messages:
        if message.role == "system":
            pending.append(message.content)
        elif message.role == "user" and pending:
            turns.append(Message("user", "\n\n".join([*pending, message.content])))
            pending = []
        else:
            turns.append(message)
    if pending:
        turns.append(Message("user", "\n\n".join(pending)))
    return _merge_same_role(turns)


def _environment() -> ImmutableSandboxedEnvironment:
    """The dialect of Hugging Face chat templates."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"], autoescape=False
    )
    env.filters["tojson"] = _to_json
    env.globals["raise_exception"] = _refuse
    env.globals["strftime_now"] = _strftime_now
    return env


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_: Any) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
