"""Drafts by the target itself with k' of its k experts, on the target's own KV cache (S2-MoE, section
4.3)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from engine.draft import Draft
from engine.expansion import EXPANSIONS
from engine.experience import Experience
from engine.request import Request
from engine.sampler import Sampler
from engine.session import Session


class SelfDraft:
    """Each step decodes the root or a candidate with few experts: that gives the next candidate, and by the
    full router's output the experts that the target would ask for there.

    It draws with a copy of the target's sampler in the same state: with equal random numbers, near-equal
    distributions draw equal tokens, so acceptance holds up at any temperature.

    Where the expansion goes by prices, so does drafting itself: blocks with a draft are tried, and go on
    while they are faster than plain decode. Not by tokens alone: a draft also reads ahead.
    """

    name = "self"

    def __init__(self, session: Session, request: Request, experience: Experience) -> None:
        speculation = request.speculation
        self._session, self._prices = session, experience.prices
        self._acceptance = experience.acceptance(self.name, request)
        expansion = EXPANSIONS[speculation.expansion]
        self._expansion = expansion(experience.prices)
        self._trial = experience.self_draft if expansion.by_prices else None
        self._experts, self._from_memory = speculation.draft_experts, speculation.from_memory
        self._ends = not request.ignore_eos
        self._sampler = Sampler.of(request, session)

    def propose(self, root: int, length: int, target: Sampler) -> Draft:
        """The root's step, then one for each candidate that is worth it; the last one allowed needs none."""
        if self._trial is not None and not (self._prices.known and self._trial.due()):
            return Draft()
        session, draft = self._session, Draft(source=self.name)
        start, token, chance = len(session.timeline), root, 1.0
        union = session.expert_union()
        self._sampler.copy_from(target)
        with self._drafting(start):
            for depth in range(length):
                chosen = self._step(token, start + depth)
                news = union.news(chosen) if union is not None and chosen is not None else None
                if depth and not self._expansion.worth_verifying(chance, news):
                    draft.tokens.pop()
                    draft.claims.pop()
                    break
                if union is not None and chosen is not None:
                    union.add(chosen)
                token = self._sampler.draw(session.context, 0)
                if self._ends and session.vocab.is_end(token):
                    break  # the target says itself whether this is the end
                claim = session.hooks.token_probability(0, token)
                chance *= self._acceptance.chance(claim)
                on = depth + 1 < length and self._expansion.worth_drafting(chance)
                if not on and not self._expansion.worth_verifying(chance, None):
                    break
                draft.tokens.append(token)
                draft.claims.append(claim)
                if not on:
                    break
        return draft

    def judged(self, draft: Draft, accepted: int, looked_at: int, ms: float) -> None:
        if draft.source != self.name:
            return
        self._acceptance.learn(draft.claims, accepted, looked_at)
        if self._trial is not None:
            self._trial.result((accepted + 1) * self._prices.plain_ms - ms)

    def close(self) -> None:
        self._sampler.close()

    def _step(self, token: int, position: int) -> npt.NDArray[np.int32] | None:
        """Decodes `token`; returns the experts the target would choose for it, I32 [layers, k]."""
        started = time.perf_counter()
        self._session.decode((token,), position, all_logits=True)
        self._prices.drafted(1e3 * (time.perf_counter() - started))
        return self._session.chosen_experts()

    @contextmanager
    def _drafting(self, start: int) -> Iterator[None]:
        """Few experts inside; afterwards the cache is as it was."""
        with self._session.drafting(self._experts, from_memory=self._from_memory):
            try:
                yield
            finally:
                self._session.rewind(start)
