"""Dialects that write an answer as messages, each with a header that says on which channel it is.

gpt-oss (Harmony) thinks on one channel and answers on another, and a header that names a function is a call.
The tokens say which is which, not the text: an answer may explain the dialect itself. So it is read where
tokens become text, and passed on as other models write: thoughts between the marks of `engine.thoughts`,
calls between the tags of `engine.tools`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine import thoughts, tools
from engine.schema import not_beginning, renamed

if TYPE_CHECKING:
    from engine.vocab import Vocab

Kind = Literal["header", "thought", "text", "call"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The tokens of a header, `start role channel NAME to=FUNCTION constrain TYPE message`, and at the
    `end` of its text; then the words in it. The prompt ends behind the first `role`.
    """

    start: str
    channel: str
    message: str
    constrain: str
    end: str
    role: str
    thinks: str
    answers: str
    calls: str
    functions: str

    @property
    def marks(self) -> tuple[str, ...]:
        return self.start, self.channel, self.message, self.constrain, self.end


HARMONY = Dialect(
    *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
    role="assistant",
    thinks="analysis",
    answers="final",
    calls="commentary",
    functions="functions.",
)
DIALECTS = (HARMONY,)

_LONGEST_HEADER = 256  # bytes; a function's name has 64
_PAUSE = "\n\n"  # between two messages of the same kind
_RECIPIENT = re.compile(r"(?:^|\s)to=(\S+)")


class Channels:
    """A dialect in one model's vocabulary."""

    def __init__(self, dialect: Dialect, vocab: Vocab, ids: Sequence[int]) -> None:
        self.dialect = dialect
        self.vocab = vocab
        self.marks = frozenset(ids)
        self.start, self.channel, self.message, self.constrain, self.end = ids

    def text(self, tokens: Iterable[int]) -> str:
        """What an answer of `tokens` reads, as far as they go."""
        reader = Reader(self)
        parts = [(tag.encode(), body) for tag, body in map(reader.read, tokens)]
        return b"".join(part for pair in parts for part in pair).decode("utf-8", "replace")

    def tokens(self, text: str) -> tuple[int, ...]:
        """The beginning of an answer that reads `text`, so that it can go on."""
        found: list[int] = []
        thinks = said = False
        for part in thoughts.apart(text):
            if part in thoughts.MARKS:
                thinks = part == thoughts.MARKS[0]
            elif part:
                if not thinks:
                    part, said = part.removeprefix(_PAUSE if said else ""), True
                found += [self.end, self.start, *self._plain(self.dialect.role)] if found else []
                name = self.dialect.thinks if thinks else self.dialect.answers
                found += [self.channel, *self._plain(name), self.message, *self._plain(part)]
        return tuple(found)

    def told(self, tokens: Sequence[int]) -> tuple[str, tuple[int, ...]]:
        """The last message of an answer and its tokens, if it is what the next prompt will tell of it."""
        place, begins = Place(self), 0
        for at, token in enumerate(tokens):
            place.step(token)
            if token == self.message:
                begins = at + 1
        if place.kind != "text" or place.channel != self.dialect.answers:
            return "", ()
        body = tuple(tokens[begins:])
        return self.vocab.text(body), body

    def rules(self, answer: str) -> str:
        """The grammar `answer`, on the channel of answers, behind thoughts if the model wants to think."""
        return self._behind_thoughts(f'"{self.dialect.answers}" {self._mark(self.message)} answer', answer)

    def call_rules(self, wanted: tools.Tools) -> str:
        """Like `rules`, of a call that `wanted` forces."""
        return self._behind_thoughts("answer", wanted.grammar(self._call_form))

    def _call_form(self, name: str) -> tuple[str, str]:
        d = self.dialect
        head = f"{tools.literal(f'{d.calls} to={d.functions}{name} ')} {self._mark(self.constrain)}"
        return f'{head} "json" {self._mark(self.message)}', ""

    def _behind_thoughts(self, root: str, answer: str) -> str:
        channel, message = self._mark(self.channel), self._mark(self.message)
        thinking = f'"{self.dialect.thinks}" {message} thought* {self._mark(self.end)}'
        again = f'{self._mark(self.start)} "{self.dialect.role}"'
        first = f"root ::= ({channel} {thinking} {again})? {channel} {root}"
        return "\n".join((first, f"thought ::= {not_beginning(self.dialect.end)}", renamed(answer, "answer")))

    @staticmethod
    def _mark(token: int) -> str:
        return f"<[{token}]>"

    def _plain(self, text: str) -> list[int]:
        return self.vocab.tokenize(text, add_special=False, parse_special=False, continues=True)


def channels_of(vocab: Vocab, template: str, dialects: Sequence[Dialect] = DIALECTS) -> Channels | None:
    """The dialect that a model with this vocabulary and chat template writes, None for plain text."""
    for dialect in dialects:
        ids = [vocab.special(name) for name in dialect.marks]
        if dialect.channel in template and None not in ids:
            return Channels(dialect, vocab, [token for token in ids if token is not None])
    return None


class Place:
    """Where in an answer one is: in a header, or in a text of some kind."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self.kind: Kind = "header"
        self.channel = ""  # its name, and the function that is called, of the text one is in
        self.function = ""
        self._header: tuple[bytes, bytes | None] = (b"", None)  # up to and behind the mark of the channel
        self._bare = True  # the prompt has written the role, nothing else has come

    def copy_from(self, other: Place) -> None:
        self.kind, self.channel, self.function = other.kind, other.channel, other.function
        self._header, self._bare = other._header, other._bare

    @property
    def forbidden(self) -> frozenset[int]:
        """Marks that a grammar must not let in here: they read like text, and its rules are of characters."""
        marks = self._channels.marks
        if self.kind == "header":
            return frozenset()
        return marks - {self._channels.end} if self.kind == "thought" else marks

    def step(self, token: int) -> bytes:
        """Goes on by `token`; what it adds to the text."""
        channels = self._channels
        if token in channels.marks:
            self._step_mark(token)
            return b""
        piece = channels.vocab.piece(token)
        return piece if self.kind != "header" else self._step_header(piece)

    def _step_mark(self, token: int) -> None:
        channels = self._channels
        if token in (channels.start, channels.end) or (token == channels.channel and self.kind != "header"):
            self.kind, self._header = "header", (b"", None)  # models leave out an end here and there
        if self.kind != "header":
            return
        self._bare = False
        if token == channels.channel:
            self._header = (self._header[0], b"")
        elif token == channels.constrain:
            self._step_header(b" ")
        elif token == channels.message:
            self.kind = self._kind()

    def _step_header(self, piece: bytes) -> bytes:
        """Adds to the header; all of it is text after all when it does not look like one."""
        role, channel = self._header
        role, channel = (role + piece, None) if channel is None else (role, channel + piece)
        self._header = role, channel
        said = role + (channel or b"")
        starts_call = role.lstrip().startswith(b"to=") or b"to=".startswith(role.lstrip())
        if (self._bare and not starts_call) or b"\n" in said or len(said) > _LONGEST_HEADER:
            self.kind, self.channel, self.function = "text", self._channels.dialect.answers, ""
            return said
        return b""

    def _kind(self) -> Kind:
        role, channel = (
            part.decode("utf-8", "replace") for part in (self._header[0], self._header[1] or b"")
        )
        dialect = self._channels.dialect
        self.channel = next(iter(channel.split()), "")
        recipient = _RECIPIENT.search(f"{role} {channel}")
        self.function = ""
        if recipient is not None and recipient[1].startswith(dialect.functions):
            self.function = recipient[1].removeprefix(dialect.functions)
            return "call"
        # Tools that came with the training are called while it thinks; nobody here has them.
        return "thought" if recipient is not None or self.channel == dialect.thinks else "text"


class Reader:
    """Turns the tokens of one answer into what other models write. `said`: the last token was text of it."""

    def __init__(self, channels: Channels) -> None:
        self._place = Place(channels)
        self._wrote_text = False
        self._open: Kind = "text"  # what is being written
        self._arguments = False  # the call being written has some
        self.said = False

    def read(self, token: int) -> tuple[str, bytes]:
        """What `token` adds: tags of ours, then a piece of text."""
        before = self._place.kind
        piece = self._place.step(token)
        kind = self._place.kind
        self.said = bool(piece)
        if kind == "header":
            return (self._close_call() if before == "call" else ""), b""
        if before != "header" and not piece:
            return "", b""
        tag = self._begin(kind) if before == "header" else ("", b"")
        if kind == "call":
            self._arguments = self._arguments or bool(piece.strip())
            piece = piece.replace(b"<", b"\\u003c")  # in JSON only a string has one, and no tag may be in it
        return tag[0], tag[1] + piece

    def end(self) -> str:
        """What the end of the answer adds, where the model itself has ended it."""
        return self._close_call() if self._open == "call" else ""

    def _begin(self, kind: Kind) -> tuple[str, bytes]:
        """A message of `kind` begins."""
        opening, closing = thoughts.MARKS
        tag = closing if self._open == "thought" and kind != "thought" else ""
        again = self._open == "thought" if kind == "thought" else kind == "text" and self._wrote_text
        if kind == "thought" and not again:
            tag = opening
        elif kind == "call":
            self._arguments = False
            tag += f'{tools.OPEN}{{"name": {json.dumps(self._place.function)}, "arguments": '
        self._open = kind
        self._wrote_text = self._wrote_text or kind == "text"
        return tag, _PAUSE.encode() if again else b""

    def _close_call(self) -> str:
        self._open = "text"
        return f"{'' if self._arguments else '{}'}}}{tools.CLOSE}"
