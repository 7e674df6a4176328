"""What a model makes of given tokens, through the engine: perplexity, and the experts it chose."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.native import llama
from engine.session import Session
from training.figures import Run
from training.shelf import ASSISTANT, FRAME, Shelf


@dataclass(frozen=True)
class Document:
    """Token ids; `counted` says of each whether its loss counts, `answer` where the first answer begins,
    the length for a text."""

    ids: Sequence[int]
    counted: npt.NDArray[np.bool_]
    answer: int


@dataclass
class Reading:
    """Sum of losses in nats over `count` tokens, and the routes of each document."""

    loss: float = 0.0
    count: int = 0
    runs: list[Run] = field(default_factory=list)

    @property
    def perplexity(self) -> float:
        return math.exp(self.loss / self.count) if self.count else float("nan")


def documents(shelf: Shelf, tokens: int) -> Iterator[Document]:
    """The first documents of `shelf`, about `tokens` tokens."""
    for start, length in zip(shelf.starts, shelf.lengths, strict=True):
        if tokens <= 0:
            return
        rows = slice(int(start), int(start + length))
        roles = shelf.roles[rows]
        answer = int((roles == ASSISTANT).argmax()) if (roles == ASSISTANT).any() else int(length)
        tokens -= int(length)
        yield Document(shelf.tokens[rows].tolist(), roles != FRAME, answer)


def read(session: Session, found: Sequence[Document]) -> Reading:
    """One pass over each document. The system's turn is read, but its loss does not count."""
    reading = Reading()
    routed = session.info.is_moe
    if routed:
        session.hooks.set_routing(True)
    for document in found:
        session.rewind(0)
        routes: dict[int, list[npt.NDArray[np.int32]]] = {}
        for at in range(0, len(document.ids), session.plan.n_ubatch):
            part = document.ids[at : at + session.plan.n_ubatch]
            session.extend(part, all_logits=True)
            _add_losses(session, document, at, len(part), reading)
            for layer in session.hooks.routing() if routed else []:
                routes.setdefault(layer.layer, []).append(layer.ranks[:, : layer.n_used])
        whole = {layer: np.concatenate(parts).astype(np.int64) for layer, parts in routes.items()}
        reading.runs.append(
            Run(
                {layer: chosen[: document.answer] for layer, chosen in whole.items()},
                {layer: chosen[document.answer :] for layer, chosen in whole.items()},
            )
        )
    session.rewind(0)
    if routed:
        session.hooks.set_routing(False)
    return reading


def _add_losses(session: Session, document: Document, at: int, count: int, reading: Reading) -> None:
    bindings, n_vocab = llama(), len(session.vocab)
    for row in range(count):
        place = at + row + 1
        if place >= len(document.ids) or not document.counted[place]:
            continue
        pointer = bindings.llama_get_logits_ith(session.context, row)
        logits = np.ctypeslib.as_array(pointer, (n_vocab,)).astype(np.float64)
        top = logits.max()
        reading.loss += float(top + np.log(np.exp(logits - top).sum()) - logits[document.ids[place]])
        reading.count += 1
