"""A text read in verify passes that lean, against the same passes unbiased (S2-MoE, Tables 2 and 4).

The text is given, so every draft is accepted and both see the same tokens. As in a chat, the cells that
biased passes write stay. The unbiased reading is plain decode to the bit, so it is the same for every width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from engine.bench.quality_text import Document
from engine.logprobs import logits_of
from engine.reuse import Reuse
from engine.session import Session

Array = npt.NDArray[np.float32]
Experts = npt.NDArray[np.int32]


@dataclass(slots=True)
class Sums:
    """Over `positions`: of what Scores are the means; `reuse`, `reuse_plain` are weighted by positions."""

    positions: int = 0
    kl: float = 0.0
    dp_squared: float = 0.0
    same_top: int = 0
    nll: float = 0.0
    nll_plain: float = 0.0
    reuse: float = 0.0
    reuse_plain: float = 0.0

    def add(self, other: Sums) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def scores(self) -> Scores:
        count = self.positions
        return Scores(
            positions=count,
            ppl=float(np.exp(self.nll_plain / count)),
            mean_kl=self.kl / count,
            rms_dp=float(np.sqrt(self.dp_squared / count)),
            top1=self.same_top / count,
            ppl_ratio=float(np.exp((self.nll - self.nll_plain) / count)),
            reuse=self.reuse / count,
            reuse_plain=self.reuse_plain / count,
        )


@dataclass(frozen=True, slots=True)
class Scores:
    """`ppl`: of the unbiased model. `mean_kl`: of it to the biased one, in nats. `rms_dp`: root mean square
    of the change in the next token's probability. `top1`: share of positions with the same likeliest token.
    `reuse`: unique experts / (k * positions) of a pass, mean over layers and passes; `reuse_plain` unbiased.
    """

    positions: int
    ppl: float
    mean_kl: float
    rms_dp: float
    top1: float
    ppl_ratio: float
    reuse: float
    reuse_plain: float

    @property
    def reuse_change(self) -> float:
        return self.reuse / self.reuse_plain - 1


class Reading:
    """One document, its prompt in the cache and the unbiased model's opinion of the rest at hand.

    The document's positions are a multiple of `width`, those of an unbiased pass. Takes 4 bytes per position
    and word of the vocabulary.
    """

    def __init__(self, session: Session, document: Document, width: int) -> None:
        self._session, self._tokens, self._start = session, document.tokens, document.start
        self._count = document.positions
        session.keep_routing(True)
        prefill(session, document)
        passes = list(self._passes(width, None, 0))
        self._plain = np.concatenate([logs for logs, _ in passes])
        self._chosen = np.concatenate([chosen for _, chosen in passes], axis=1)

    def score(self, block: int, reuse: Reuse, draft_experts: int) -> Sums:
        """Reads in passes of `block` positions; drafts with `draft_experts` say how sure they are."""
        sums = Sums()
        for i, (logs, chosen) in enumerate(self._passes(block, reuse, draft_experts)):
            part = slice(i * block, (i + 1) * block)
            following = self._tokens[self._start + i * block + 1 :][:block]
            sums.add(_compare(self._plain[part], logs, np.array(following)))
            sums.reuse += block * self._reuse_ratio(chosen)
            sums.reuse_plain += block * self._reuse_ratio(self._chosen[:, part])
        return sums

    def _passes(self, block: int, reuse: Reuse | None, draft_experts: int) -> Iterator[tuple[Array, Experts]]:
        """Log-probabilities F32 [block, vocabulary] and experts I32 [layers, block, k] of each pass."""
        session = self._session
        session.rewind(self._start)
        for at in range(self._start, self._start + self._count, block):
            rows = self._tokens[at : at + block]
            if reuse is None:
                session.decode(rows, at, all_logits=True)
            else:
                claims = claims_of(session, rows, at, draft_experts)
                with session.leaning(reuse, claims):
                    session.decode(rows, at, all_logits=True)
            session.keep(rows)
            yield self._logs(block), self._experts(block)

    def _logs(self, count: int) -> Array:
        return log_softmax(logits_of_rows(self._session, count))

    def _experts(self, count: int) -> Experts:
        session, used = self._session, self._session.info.n_expert_used
        layers = session.hooks.routing_layers() if session.store is None else session.store.n_layers
        best = session.hooks.best_experts(layers, used, count)
        assert best is not None, "the pass kept no routing"
        return best.reshape(layers, count, used)

    def _reuse_ratio(self, chosen: Experts) -> float:
        layers = chosen.shape[0]
        asked = np.zeros((layers, self._session.info.n_expert), dtype=bool)
        asked[np.arange(layers)[:, None], chosen.reshape(layers, -1)] = True
        return float(np.count_nonzero(asked)) / chosen.size


def prefill(session: Session, document: Document) -> None:
    """The document's prompt, and nothing else, is in the cache."""
    session.rewind(0)
    for at in range(0, document.start, session.plan.n_ubatch):
        session.extend(
            document.tokens[at : min(at + session.plan.n_ubatch, document.start)], all_logits=False
        )


def logits_of_rows(session: Session, count: int) -> Array:
    """A copy of the logits F32 [count, vocabulary] of the last pass's first rows."""
    return np.stack([logits_of(session.context, row, len(session.vocab)) for row in range(count)])


def claims_of(session: Session, rows: Sequence[int], at: int, draft_experts: int) -> list[float]:
    """How likely a draft finds each of `rows`, at positions from `at`, but the first. One pass: rows of a
    narrow pass have the bits that passes of one row each would give them."""
    drafted = rows[:-1]
    with session.drafting(draft_experts, from_memory=False):
        session.decode(drafted, at, all_logits=True)
        claims = [session.hooks.token_probability(i, rows[i + 1]) for i in range(len(drafted))]
        session.rewind(at)
    return claims


def log_softmax(logits: Array) -> Array:
    """Of each row. The sum is taken in F64: a vocabulary is long."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.exp(shifted).sum(axis=1, dtype=np.float64, keepdims=True)
    logs: Array = shifted - np.log(total).astype(np.float32)
    return logs


def _compare(plain: Array, leaning: Array, following: npt.NDArray[np.int64]) -> Sums:
    """Of log-probabilities F32 [rows, vocabulary]; `following` is what the text goes on with behind each."""
    rows = np.arange(len(following))
    before, after = plain[rows, following], leaning[rows, following]
    return Sums(
        positions=len(rows),
        kl=float((np.exp(plain) * (plain - leaning)).sum(dtype=np.float64)),
        dp_squared=float(np.square(np.exp(after) - np.exp(before)).sum()),
        same_top=int(np.count_nonzero(plain.argmax(axis=1) == leaning.argmax(axis=1))),
        nll=-float(after.sum()),
        nll_plain=-float(before.sum()),
    )
