"""What `bench quality` reads: answers of the model itself in its own chat template, and prose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.bench.tasks import FOLDER, TASKS, Prompt, prompts_for
from engine.errors import BadRequest
from engine.events import Done, Tokens
from engine.loop import generate
from engine.native import CancelFlag
from engine.request import Request, Sampling, Speculation
from engine.session import Session

CHAT, PROSE, BOTH = "chat", "prose", "both"
_CHAT_PART = 0.75  # of the positions of BOTH
_ANSWER = 96  # tokens of an answer, at most
_PIECE = 256  # tokens of prose that are read in one go: the probabilities of all are held at once


@dataclass(frozen=True, slots=True)
class Document:
    """`tokens` of one context; those before `start` are a prompt, which no verify pass reads."""

    tokens: tuple[int, ...]
    start: int

    @property
    def positions(self) -> int:
        """How many tokens from `start` on have one behind them."""
        return len(self.tokens) - 1 - self.start

    def cut(self, positions: int) -> Document:
        return Document(self.tokens[: self.start + positions + 1], self.start)


def documents(session: Session, text: str, positions: int, multiple: int) -> Iterator[Document]:
    """Some `positions` of CHAT, PROSE, BOTH or the file at `text`, in each document a multiple of `multiple`.

    Raises BadRequest where the file cannot be read.
    """
    shares = {CHAT: (1.0, 0.0), PROSE: (0.0, 1.0), BOTH: (_CHAT_PART, 1 - _CHAT_PART)}
    chat, rest = shares.get(text, (0.0, 1.0))
    path = FOLDER / "prose.txt" if text in shares else Path(text)
    yield from cut_to(answers(session, prompts_for(list(TASKS)), _ANSWER), round(chat * positions), multiple)
    yield from cut_to(_pieces(session, path), round(rest * positions), multiple)


def cut_to(source: Iterable[Document], positions: int, multiple: int) -> Iterator[Document]:
    """Of `source` what it takes for `positions`, in each document a multiple of `multiple`."""
    missing = -(-positions // multiple) * multiple
    if not missing:
        return
    for document in source:
        count = min(document.positions // multiple * multiple, missing)
        if count:
            yield document.cut(count)
        missing -= count
        if not missing:
            return


def answers(session: Session, prompts: Iterable[Prompt], max_tokens: int) -> Iterator[Document]:
    """The model's own greedy answers."""
    for prompt in prompts:
        asked = session.tokenize_chat(prompt.messages)
        yield Document(asked + answer_to(session, asked, Speculation("ar"), max_tokens)[0], len(asked))


def answer_to(
    session: Session, prompt: tuple[int, ...], speculation: Speculation, max_tokens: int
) -> tuple[tuple[int, ...], str]:
    """A greedy answer to a conversation: its tokens and its text. Nothing of an earlier one is used."""
    session.rewind(0)
    request = Request(prompt, Sampling(temperature=0.0), speculation, max_tokens=max_tokens, in_dialect=True)
    ids: list[int] = []
    text = ""
    for event in generate(session, request, CancelFlag()):
        if isinstance(event, Tokens):
            ids += event.ids
        if isinstance(event, Tokens | Done):
            text += event.text
    return tuple(ids), text


def _pieces(session: Session, path: Path) -> Iterator[Document]:
    """The text at `path`, cut into contexts of their own."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path} cannot be read: {error}", hint="give --text a text in UTF-8") from None
    vocab = session.vocab
    tokens = vocab.tokenize(text, add_special=False, parse_special=False)
    head = (vocab.bos,) if vocab.adds_bos else ()
    for at in range(0, len(tokens), _PIECE):
        yield Document((*head, *tokens[at : at + _PIECE]), len(head))
