"""How conversations read to one model: its chat template, and the ids its answers were generated as."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from engine.chat import CHATML, ChatTemplate, Message
from engine.errors import BadRequest
from engine.native import llama
from engine.thoughts import opens_thoughts
from engine.tools import Tools
from engine.vocab import Vocab

_REPLIES_KEPT = 256  # answers whose token ids are remembered, so that their KV cells are found again
_TAG_TOKENS = 12  # more than any tag of thoughts takes


class Dialogue:
    """Prompts of conversations and of plain text, for a context of `n_ctx` tokens.

    Says in `notices` where the model's template is missing or of no use.
    """

    def __init__(self, model: Any, vocab: Vocab, n_ctx: int, notices: list[str]) -> None:
        self._vocab, self._n_ctx = vocab, n_ctx
        self._template = _template_of(model, vocab, notices)
        self.channels = self._template.channels
        if self.channels is not None:
            vocab.break_names(self.channels.dialect.marks)
        # Answers and the ids they were generated as: what the next prompt tells of them, and all of them.
        self._replies: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._wholes: OrderedDict[str, tuple[int, ...]] = OrderedDict()

    def tokenize_chat(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool | None = None,
        effort: str | None = None,
        tools: Tools | None = None,
    ) -> tuple[int, ...]:
        """The prompt for the next answer in `messages`, by the model's chat template.

        `thinking`, `effort`: whether the model thinks first and how much, where the template lets one choose.
        None is its default.
        """
        if thinking is not None and not self.can_switch_thoughts:
            raise BadRequest("the model's chat template has no switch for thinking", hint="leave it out")
        if effort is not None and not self.can_set_effort:
            raise BadRequest("the model's chat template has no levels of reasoning", hint="leave it out")
        return self._template.tokenize(
            messages, self._replies, self._n_ctx, thinking=thinking, effort=effort, tools=tools
        )

    def tokenize_continued(
        self, messages: Sequence[Message], *, thinking: bool | None = None, effort: str | None = None
    ) -> tuple[tuple[int, ...], int]:
        """The prompt that lets the last of `messages`, an answer, go on; how many of its tokens are the
        answer.

        An answer this session gave keeps its ids, so that it goes on as if it had never ended.
        """
        *before, last = messages
        if last.role != "assistant":
            raise BadRequest("the last message is no answer that could go on")
        prompt = self.tokenize_chat(before, thinking=thinking, effort=effort)
        opened = self.opens_thoughts(prompt)
        # The template has written the tag already that this answer begins with.
        text = last.content.removeprefix(opened) if opened else last.content
        answer = self._wholes.get(text)
        if answer is None:
            answer = self.channels.tokens(text) if self.channels else self._template.tokenize_answer(text)
        return prompt + answer, len(answer)

    def opens_thoughts(self, prompt: Sequence[int]) -> str:
        """The tag of thoughts, and white space behind it, that `prompt` ends with; "" for none."""
        tail = prompt[-_TAG_TOKENS:]
        return opens_thoughts("".join(self._vocab.text((t,)) or self._vocab.name(t) for t in tail))

    @property
    def can_switch_thoughts(self) -> bool:
        """Whether the chat template lets the caller choose if the model thinks first."""
        return self._template.can_switch_thoughts

    @property
    def can_set_effort(self) -> bool:
        """Whether the chat template lets the caller choose how much the model thinks."""
        return self._template.can_set_effort

    def tokenize_text(self, text: str) -> tuple[int, ...]:
        """`text` as it stands, special tokens in it included."""
        self._vocab.check_fits(text, self._n_ctx)
        return tuple(self._vocab.tokenize(text, add_special=True, parse_special=True))

    def text_of(self, answer: Sequence[int], *, in_dialect: bool) -> str:
        """How `answer` reads: as text, or as the model's dialect writes it."""
        return self.channels.text(answer) if in_dialect and self.channels else self._vocab.text(tuple(answer))

    def remember_reply(self, text: str, tokens: Sequence[int], *, in_dialect: bool = False) -> None:
        """Notes the ids an answer was generated as: its text alone may tokenise to others."""
        if not text or text != self.text_of(tokens, in_dialect=in_dialect):
            return
        _remember(self._wholes, text, tuple(tokens))
        told = self.channels.told(tokens) if in_dialect and self.channels else (text, tuple(tokens))
        if told[0]:
            _remember(self._replies, *told)


def _template_of(model: Any, vocab: Vocab, notices: list[str]) -> ChatTemplate:
    source = llama().llama_model_chat_template(model, None)
    if not source:
        notices.append("the model brings no chat template: ChatML is used, answers may ramble")
    try:
        return ChatTemplate(bytes(source or b"").decode("utf-8", "replace") or CHATML, vocab)
    except BadRequest as error:
        notices.append(f"{error.message}: ChatML is used, answers may ramble")
        return ChatTemplate(CHATML, vocab)


def _remember(known: OrderedDict[str, tuple[int, ...]], text: str, tokens: tuple[int, ...]) -> None:
    known[text] = tokens
    known.move_to_end(text)
    if len(known) > _REPLIES_KEPT:
        known.popitem(last=False)
