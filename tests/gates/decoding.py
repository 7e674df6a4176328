"""What the gates share: sessions by their settings, and answers as token ids."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.bench.loading import load_here
from engine.draft import Draft, Drafter
from engine.events import Done, Timings, Tokens
from engine.loop import generate
from engine.native import CancelFlag, llama
from engine.request import Request, Sampling, Speculation
from engine.sampler import Sampler
from engine.session import Session

PASSAGE = Path(__file__).with_name("passage.txt")


class Loader:
    """Sessions by thread count, context size and type of the KV cache, opened once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sessions: dict[tuple[int, int, str, bool | None], Session] = {}

    def get(
        self, *, threads: int, n_ctx: int = 8192, cache_type: str = "f16", store: bool | None = None
    ) -> Session:
        key = (threads, n_ctx, cache_type, store)
        if key not in self._sessions:
            self._sessions[key] = load_here(
                self._path,
                n_ctx=n_ctx,
                n_threads=threads,
                threads_fixed=True,
                cache_type=cache_type,
                store=store,
            )
        return self._sessions[key]

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()


@dataclass(frozen=True)
class Answer:
    """What one request delivered, and the KV cache it left: (tokens in the cache, their bytes)."""

    ids: tuple[int, ...]
    text: str
    reason: str
    timings: Timings
    cells: int
    cache: bytes


def prompt_of(session: Session, passage: str, length: int) -> tuple[int, ...]:
    """A prompt of exactly `length` tokens that ends by asking for more."""
    tokens = session.vocab.tokenize(passage, add_special=False, parse_special=False)
    tail = session.vocab.tokenize(
        "<|im_end|>\n<|im_start|>user\nExplain this in plain words.<|im_end|>\n<|im_start|>assistant\n",
        add_special=False,
        parse_special=True,
    )
    assert len(tokens) > length
    return (*tokens[: length - len(tail)], *tail)


def request(
    prompt: tuple[int, ...],
    *,
    mode: str = "ar",
    k: int = 2,
    length: int = 4,
    expansion: str = "fixed",
    temperature: float = 0.0,
    tokens: int = 64,
    stop: tuple[str, ...] = (),
    seed: int = 11,
    **sampling: float,
) -> Request:
    return Request(
        prompt=prompt,
        sampling=Sampling(temperature=temperature, seed=seed, **sampling),  # type: ignore[arg-type]
        speculation=Speculation(mode, k, length, expansion),
        max_tokens=tokens,
        stop=stop,
    )


def answer(
    session: Session, request: Request, drafter: Drafter | None = None, cancel: CancelFlag | None = None
) -> Answer:
    """Runs `request` to its end."""
    ids: list[int] = []
    text = ""
    for event in generate(session, request, cancel or CancelFlag(), drafter):
        if isinstance(event, Tokens):
            ids += event.ids
            text += event.text
        elif isinstance(event, Done):
            text += event.text
            return Answer(
                tuple(ids), text, event.reason, event.timings, len(session.timeline), cache_bytes(session)
            )
    raise AssertionError("the answer had no end")


def cache_bytes(session: Session) -> bytes:
    """Every byte of the KV cache that later tokens will read, positions included."""
    bindings = llama()
    size = bindings.llama_state_seq_get_size(session.context, 0)
    buffer = (ctypes.c_uint8 * size)()
    written = bindings.llama_state_seq_get_data(session.context, buffer, size, 0)
    return ctypes.string_at(buffer, written)  # a slice would make a list of numbers first


class Script:
    """Proposes what the answer will be, with one wrong token at `wrong` places into each block."""

    def __init__(self, ids: Sequence[int], session: Session, start: int, wrong: int | None) -> None:
        self._ids, self._session, self._start, self._wrong = list(ids), session, start, wrong

    def begin(self) -> None: ...

    def propose(self, root: int, length: int, target: Sampler) -> Draft:  # noqa: ARG002
        at = len(self._session.timeline) - self._start  # the root is ids[at]
        assert self._ids[at] == root
        drafts = self._ids[at + 1 : at + 1 + length]
        if self._wrong is not None and self._wrong < len(drafts):
            drafts[self._wrong] = (drafts[self._wrong] + 1) % len(self._session.vocab)
        return Draft(drafts, [1.0] * len(drafts), "script")

    def judged(self, draft: Draft, accepted: int, looked_at: int, ms: float) -> None: ...

    def close(self) -> None:
        pass
