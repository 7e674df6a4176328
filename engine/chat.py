"""Turns a conversation into the prompt the model was trained on."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jinja2

from engine.channels import channels_of
from engine.dialect import environment
from engine.errors import BadRequest
from engine.message import THOUGHT
from engine.message import Message as Message
from engine.thoughts import without_marked
from engine.tools import OPEN, Tools
from engine.vocab import Vocab

# Variables by which templates let the caller choose.
_SWITCH, _EFFORT = "enable_thinking", "reasoning_effort"
_THINKING = "thinking"  # how gpt-oss's calls THOUGHT

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ChatTemplate:
    """The model's own chat template, and how to tokenise what it renders."""

    def __init__(self, source: str, vocab: Vocab) -> None:
        self._vocab = vocab
        self._bos, self._eos = vocab.name(vocab.bos), vocab.name(vocab.eos)
        self.can_switch_thoughts = _SWITCH in source
        self.can_set_effort = _EFFORT in source
        self.has_tools = "tools" in source
        self.channels = channels_of(vocab, source)
        self._calls_are_read = OPEN in source or self.channels is not None
        self._nonce = secrets.token_hex(8)  # no one can have written it into a message
        self._marks = re.compile(rf"{self._nonce}([BE])(\d+)Q")
        try:
            self._template = environment().from_string(source)
        except Exception as error:  # compiling a foreign template: whatever it raises, it cannot be used
            raise BadRequest(f"the model's chat template cannot be read: {error}") from error

    def tokenize(
        self,
        messages: Sequence[Message],
        replies: Mapping[str, tuple[int, ...]],
        n_ctx: int | None = None,
        *,
        thinking: bool | None = None,
        effort: str | None = None,
        tools: Tools | None = None,
    ) -> tuple[int, ...]:
        """The prompt that asks for the next answer. `thinking`, `effort`: None leaves it to the template.

        What people wrote never becomes a special token, and answers of ours (`replies`: text to the
        ids it was generated as) keep their ids, so that their KV cells can be used again. All other text is
        tokenised in one go, as in training: a message apart from its surroundings can read differently.
        Raises BadRequest with the template's reason when it refuses the conversation, ContextFull when it is
        clear without counting that `n_ctx` tokens cannot hold it.
        """
        messages = [self._without_thoughts(message) for message in messages]
        self._check_tools(messages, tools)
        asked = {_SWITCH: thinking, _EFFORT: effort}
        variables: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
        if tools is not None:
            variables["tools"] = [dict(tool) for tool in tools.functions]
        text, turns = self._render(messages, variables)
        if n_ctx is not None:
            self._vocab.check_fits(text, n_ctx)
        # A template that writes its own BOS must not get a second one.
        own_bos = bool(self._bos) and text.lstrip().startswith(self._bos)
        tokens = [self._vocab.bos] if self._vocab.adds_bos and not own_bos else []
        at = 0
        for start, end, role in self._spans(turns, text, variables):
            apart = self._apart(text[start:end], role, replies)
            if apart is not None:
                tokens += self._with_special(text[at:start], continues=at > 0)
                tokens += apart
                at = end
        tokens += self._with_special(text[at:], continues=at > 0)
        return tuple(tokens)

    def tokenize_answer(self, text: str) -> tuple[int, ...]:
        """The ids of an answer that is to go on, where those it was generated as are not known."""
        return tuple(self._plain(text))

    def _check_tools(self, messages: Sequence[Message], tools: Tools | None) -> None:
        """Refuses tools where the template would not show them, or nobody could read the calls."""
        used = any("tool_calls" in message.more or message.role == "tool" for message in messages)
        if tools is None and not used:
            return
        if not self.has_tools:
            raise BadRequest("the model's chat template knows no tools", hint="another model, or no tools")
        if not self._calls_are_read:
            raise BadRequest("this model writes calls of tools in a way that is not supported")
        told = [tools.functions if tools else (), [message.more for message in messages]]
        if self._disarmed(json.dumps(told, ensure_ascii=False)) is not None:
            raise BadRequest("a tool holds the name of a special token, and the model would obey it")

    def _without_thoughts(self, message: Message) -> Message:
        """An earlier answer as templates know it: those that drop thoughts know only the tags of their model.

        Thoughts behind a call of a tool the template may want, under the one name or the other; those that
        hold the name of a special token are left out, because the model would obey it.
        """
        if message.role != "assistant":
            return message
        content, more = without_marked(message.content), dict(message.more)
        thought = more.pop(THOUGHT, "")
        if thought and self._disarmed(thought) is None:
            if "tool_calls" in more and self.channels is not None:  # gpt-oss's takes one of them
                thought, content = "\n\n".join(part for part in (thought, content) if part), ""
            more |= {THOUGHT: thought, _THINKING: thought}
        return Message(message.role, content, more)

    def _plain(self, text: str) -> list[int]:
        return self._vocab.tokenize(text, add_special=False, parse_special=False, continues=True)

    def _with_special(self, text: str, *, continues: bool) -> list[int]:
        return self._vocab.tokenize(text, add_special=False, parse_special=True, continues=continues)

    def _apart(self, text: str, role: str, replies: Mapping[str, tuple[int, ...]]) -> Sequence[int] | None:
        """The ids of a message that must not be read together with the text around it."""
        known = replies.get(text) if role == "assistant" else None
        return known if known is not None else self._disarmed(text)

    def _disarmed(self, text: str) -> Sequence[int] | None:
        """`text` without special tokens, if it holds what would become one."""
        plain = self._plain(text)
        return plain if plain != self._with_special(text, continues=True) else None

    def _spans(
        self, turns: Sequence[Message], text: str, variables: Mapping[str, Any]
    ) -> list[tuple[int, int, str]]:
        """(start, end, role) of each message in the rendered `text`.

        Searching for it would find "user" in the role's name. Marks at its ends show it, as long as the
        template writes the same text around them. Templates that trim want them inside the white space.
        """
        for place in (_at_its_ends, _inside_white_space):
            places = [place(turn.content) for turn in turns]
            marked = [
                replace(
                    turn,
                    content=f"{head}{self._nonce}B{no}Q{body}{self._nonce}E{no}Q{tail}" if body else head,
                )
                for no, (turn, (head, body, tail)) in enumerate(zip(turns, places, strict=True))
            ]
            try:
                rendered = self._apply(marked, variables)
            except Exception:  # the template looks into the messages and dislikes the marks
                continue
            if self._marks.sub("", rendered) == text:
                spans = self._read_marks(rendered, [body for _, body, _ in places])
                if spans is not None:
                    return [(start, end, turns[no].role) for start, end, no in spans]
        if any(self._disarmed(turn.content) is not None for turn in turns):
            raise BadRequest(
                "a message holds the name of a special token, and the model's chat template would obey it",
                hint="write it differently",
            )
        return []

    def _read_marks(self, rendered: str, bodies: Sequence[str]) -> list[tuple[int, int, int]] | None:
        """(start, end, number) of each message, counted without the marks; None if one has lost its end."""
        text, *parts = self._marks.split(rendered)
        spans: list[tuple[int, int, int]] = []
        start: int | None = None
        for kind, no, follows in zip(parts[0::3], parts[1::3], parts[2::3], strict=True):
            if kind == "E":
                # Templates cut the thoughts off earlier answers, and the first mark with them.
                kept = len(text) - _shared_tail(text, bodies[int(no)]) if start is None else start
                spans.append((kept, len(text), int(no)))
                start = None
            elif start is None:
                start = len(text)
            else:
                return None
            text += follows
        return spans if start is None else None

    def _render(
        self, messages: Sequence[Message], variables: Mapping[str, Any]
    ) -> tuple[str, Sequence[Message]]:
        """The rendered text and the turns in it; turns are reshaped only if the template insists."""
        if not messages:
            raise BadRequest("messages is empty", hint="send at least one message")
        first_refusal = ""
        for reshape in (_as_it_is, _merge_same_role, _fold_system):
            turns = reshape(messages)
            try:
                return self._apply(turns, variables), turns
            except jinja2.TemplateError as error:
                first_refusal = first_refusal or str(error)
            except Exception as error:  # a foreign program: whatever it raises, it refuses
                first_refusal = first_refusal or f"{type(error).__name__}: {error}"
        raise BadRequest(f"the model's chat template refuses this conversation: {first_refusal}")

    def _apply(self, turns: Sequence[Message], variables: Mapping[str, Any]) -> str:
        # gpt-oss's template refuses answers that have its marks, also one that only explains them.
        name = self.channels.dialect.channel if self.channels else ""
        hidden = f"{self._nonce}N" if name else ""
        text = self._template.render(
            messages=[
                {"role": turn.role, "content": turn.content.replace(name, hidden), **turn.more}
                for turn in turns
            ],
            add_generation_prompt=True,
            bos_token=self._bos,
            eos_token=self._eos,
            **variables,
        )
        return text.replace(hidden, name)


def _at_its_ends(content: str) -> tuple[str, str, str]:
    return "", content, ""


def _inside_white_space(content: str) -> tuple[str, str, str]:
    body = content.strip()
    head, _, tail = content.partition(body) if body else (content, "", "")
    return head, body, tail


def _shared_tail(text: str, other: str) -> int:
    """Length of the longest end that both have."""
    count = 0
    for mine, theirs in zip(reversed(text), reversed(other), strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _as_it_is(messages: Sequence[Message]) -> Sequence[Message]:
    return messages


def _merge_same_role(messages: Sequence[Message]) -> Sequence[Message]:
    """Neighbours of one role become one turn: after a cancelled answer two questions follow each other."""
    turns: list[Message] = []
    for message in messages:
        if turns and turns[-1].role == message.role and not (message.more or turns[-1].more):
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
