"""The tied head: the teacher's distribution in few numbers, and the divergence from it with a gradient by
hand."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from training.shelf import TOP, Shelf
from training.trunk import Trunk

Tensor = torch.Tensor
_LEAST = 1e-6  # of probability: what is left to the tail at least
_CHUNK = 128  # rows of logits at a time


def summary(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of F32 `logits` [n, 49152] the ids [n, 128] and log-probabilities of the likeliest, best first, and the
    logarithm of the tail's probability [n]."""
    top, ids = logits.topk(TOP, dim=1)
    logp = top - logits.logsumexp(1, keepdim=True)
    tail = (1 - logp.exp().sum(1)).clamp_(min=_LEAST).log_()
    return ids, logp, tail


@dataclass(frozen=True)
class Targets:
    """The teacher's figures at some rows, on the device. `ids` I64, `logp` F32 [n, 128], `tail` F32 [n]."""

    ids: Tensor
    logp: Tensor
    tail: Tensor

    @classmethod
    def of(cls, shelf: Shelf, rows: object, device: torch.device) -> Targets:
        ids = torch.from_numpy(shelf.ids[rows].astype("int64")).to(device)
        logp = torch.from_numpy(shelf.logp[rows].astype("float32")).to(device)
        return cls(ids, logp, torch.from_numpy(shelf.tail[rows].astype("float32")).to(device))

    def leaning(self, following: Tensor, share: float) -> Targets:
        """With `share` of the probability moved to the token that does follow (I64 [n], -1 where none is
        known), from all tokens alike; as they are where that is not listed."""
        listed = self.ids == following[:, None]
        moved = share * listed.any(1).float()
        p = self.logp.exp() * (1 - moved[:, None]) + listed * moved[:, None]
        return Targets(self.ids, p.log(), self.tail + (1 - moved).log())


def divergence(trunk: Trunk, final: Tensor, targets: Targets, weights: Tensor) -> tuple[float, Tensor]:
    """KL(teacher || student) over the 128 likeliest tokens and the rest as one, and its gradient to
    `final`.

    `final` F32 [n, 576], `weights` F32 [n] sum to 1. At a listed token the gradient by its logit is q -
    p, at one of the tail q (1 - p_tail / q_tail): exact, and no graph over 49,152 logits is kept.
    """
    total, gradient = 0.0, torch.empty_like(final)
    for start in range(0, len(final), _CHUNK):
        rows = slice(start, start + _CHUNK)
        logits = trunk.logits(final[rows])
        ids, p = targets.ids[rows], targets.logp[rows].exp()
        score, share = logits.gather(1, ids), logits.softmax(1)
        q = share.gather(1, ids)
        best = q.argmax(1, keepdim=True)  # the log of a tiny q is better taken from its logit
        logq = score - score.gather(1, best) + q.gather(1, best).clamp(min=1e-30).log()
        p_tail = targets.tail[rows].exp()
        q_tail = (1 - q.sum(1)).clamp_(min=_LEAST)
        listed = (p * (targets.logp[rows] - logq)).sum(1)
        kl = listed + p_tail * (targets.tail[rows] - q_tail.log())
        total += float((kl * weights[rows]).sum())
        share.mul_(((1 - p_tail / q_tail) * weights[rows])[:, None])
        share.scatter_(1, ids, (q - p) * weights[rows, None])
        gradient[rows] = (share.to(trunk.dtype) @ trunk.embedding).float()
    return total, gradient


@dataclass
class Agreement:
    """How near a student is to its teacher on some tokens."""

    kl: float = 0.0
    loss: float = 0.0
    teacher_loss: float = 0.0
    same: float = 0.0
    count: float = 0.0

    def as_dict(self) -> dict[str, float]:
        n = max(self.count, 1.0)
        perplexity, teacher = (float(torch.tensor(loss / n).exp()) for loss in (self.loss, self.teacher_loss))
        ratio = perplexity / teacher
        return {
            "kl": self.kl / n,
            "ppl": perplexity,
            "teacher": teacher,
            "ratio": ratio,
            "top1": self.same / n,
        }

    def add(self, logits: Tensor, targets: Targets, following: Tensor, counted: Tensor) -> None:
        """`logits` [n, 49152], the tokens that do follow [n], and which of the rows count [n]."""
        logq = logits.log_softmax(1)
        q = logq.gather(1, targets.ids)
        q_tail = (1 - q.exp().sum(1)).clamp_(min=_LEAST).log()
        kl = (targets.logp.exp() * (targets.logp - q)).sum(1)
        kl += targets.tail.exp() * (targets.tail - q_tail)
        listed = targets.ids == following[:, None]
        # A token of the tail: its share of the tail is unknown, so an even one over the vocabulary is taken.
        unlisted = targets.tail - float(torch.tensor(float(logits.shape[1] - TOP)).log())
        teacher = torch.where(listed.any(1), (targets.logp * listed).sum(1), unlisted)
        self.kl += float((kl * counted).sum())
        self.loss -= float((logq.gather(1, following[:, None])[:, 0] * counted).sum())
        self.teacher_loss -= float((teacher * counted).sum())
        best = targets.ids.gather(1, targets.logp.argmax(1, keepdim=True))[:, 0]
        self.same += float(((logq.argmax(1) == best) * counted).sum())
        self.count += float(counted.sum())
