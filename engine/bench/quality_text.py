"""What `bench quality` reads: conversations in the model's own chat template, and prose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.bench.tasks import FOLDER, TASKS, Prompt, prompts_for
from engine.errors import BadRequest
from engine.events import Done, Tokens
from engine.loop import generate
from engine.native import CancelFlag
from engine.request import Request, Sampling, Speculation
from engine.session import Session

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
    """Some `positions` of the `text`, in each document a multiple of `multiple`: equal parts of those of
    TEXTS that it names, with commas between them, or of the file at that path.

    Raises BadRequest where the file cannot be read.
    """
    names = text.split(",") if set(text.split(",")) <= TEXTS.keys() else [text]
    for name in names:
        source = TEXTS[name](session) if name in TEXTS else _pieces(session, Path(name))
        yield from cut_to(source, round(positions / len(names)), multiple)


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
        asked = session.dialogue.tokenize_chat(prompt.messages)
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


def _asked(session: Session) -> Iterator[Document]:
    """Our conversations in the model's template, from where they part: what people wrote, and the model did
    not."""
    told = [session.dialogue.tokenize_chat(prompt.messages) for prompt in prompts_for(list(TASKS))]
    extremes = zip(
        min(told), max(told), strict=False
    )  # in the order of a dictionary: all share what these do
    start = next(i for i, (one, other) in enumerate(extremes) if one != other)
    yield from (Document(tokens, start) for tokens in told)


TEXTS: dict[str, Callable[[Session], Iterator[Document]]] = {
    "answers": lambda session: answers(session, prompts_for(list(TASKS)), _ANSWER),
    "asked": _asked,
    "prose": lambda session: _pieces(session, FOLDER / "prose.txt"),
}
