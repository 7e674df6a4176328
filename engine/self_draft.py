"""Drafts by the target itself with k' of its k experts, on the target's own KV cache (S2-MoE, section
4.3), or for comparison in a context apart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.acceptance import Acceptance
from engine.draft import Draft
from engine.expansion import EXPANSIONS, Expansion, Fixed, Priced, Sampled
from engine.experience import DraftKind, Experience
from engine.prices import Load
from engine.request import MODES, Request
from engine.sampler import Sampler
from engine.session import Session

if TYPE_CHECKING:
    from engine.calibration import Calibration
    from engine.context import Context


@dataclass(frozen=True, slots=True)
class _Way:
    """To draft with so many experts."""

    experts: int
    kind: DraftKind
    acceptance: Acceptance
    expansion: Expansion


@dataclass(slots=True)
class _News:
    """What the positions of a block were expected to bring to its pass. The last draft's experts may not be
    known: only a step with it would have shown them."""

    root: float = 0.0
    known: float = 0.0
    count: int = 0

    def add(self, news: Load, *, is_root: bool) -> None:
        if is_root:
            self.root = news.experts
        else:
            self.known, self.count = self.known + news.experts, self.count + 1

    def judged(self, kind: DraftKind, drafts: int, load: Load) -> None:
        """`load`: what the pass of the root and so many `drafts` really asked for."""
        if self.count and load.positions == drafts + 1:
            kind.verified(self.known * drafts / self.count, load.experts - self.root)


class SelfDraft:
    """Each step decodes the root or a candidate with few experts: that gives the next candidate, and by the
    full router's output the experts that the target would ask for there.

    It draws with a copy of the target's sampler in the same state: with equal random numbers, near-equal
    distributions draw equal tokens, so acceptance holds up at any temperature.

    `calibration`: tries other k' in some blocks. Raises BadRequest where the mode drafts apart and there is
    no memory for that.
    """

    name = "self"

    def __init__(
        self,
        session: Session,
        request: Request,
        experience: Experience,
        calibration: Calibration | None = None,
    ) -> None:
        self._session, self._experience, self._calibration = session, experience, calibration
        self._speculation, self._greedy = request.speculation, request.sampling.is_greedy
        self._apart = MODES[request.speculation.mode].apart
        # Drafts fare otherwise where verify passes lean, and where they are made apart.
        leans = request.speculation.reuse is not None
        self._kind = "apart" if self._apart else "leaning" if leans else self.name
        if self._apart:
            session.annex.take()
        self._ends = not request.ignore_eos
        self._news = _News()
        self._way = self._usual = self._way_of(
            request.speculation.draft_experts, EXPANSIONS[request.speculation.expands_by]
        )
        self._sampler = Sampler.of(request, session)

    def begin(self) -> None:
        if self._apart:
            self._caught_up()

    def propose(self, root: int, length: int, target: Sampler) -> Draft:
        """The root's step, then one for each candidate that is worth it; the last one allowed needs none."""
        session, draft = self._session, Draft(source=self.name)
        way = self._way = self._way_to_try() or self._usual
        length = way.expansion.limit(length)
        if not length:
            return draft
        start, token, chance = len(session.timeline), root, 1.0
        union = session.expert_union()
        self._news = _News()
        self._sampler.copy_from(target)
        with self._drafting(start) as cells:
            for depth in range(length):
                chosen = self._step(cells, token, start + depth)
                news = union.news(chosen) if union is not None and chosen is not None else None
                if depth and not way.expansion.worth_verifying(chance, news):
                    draft.tokens.pop()
                    draft.claims.pop()
                    break
                if union is not None and chosen is not None and news is not None:
                    union.add(chosen)
                    self._news.add(news, is_root=not depth)
                token = self._sampler.draw(cells.handle, 0)
                if self._ends and session.vocab.is_end(token):
                    break  # the target says itself whether this is the end
                claim = cells.hooks.token_probability(0, token)
                chance *= way.acceptance.chance(claim)
                on = depth + 1 < length and way.expansion.worth_drafting(chance)
                if not on and not way.expansion.worth_verifying(chance, None):
                    break
                draft.tokens.append(token)
                draft.claims.append(claim)
                if not on:
                    break
        return draft

    def judged(self, draft: Draft, accepted: int, looked_at: int, ms: float) -> None:
        if draft.source != self.name:
            return
        self._way.acceptance.learn(draft.claims, accepted, looked_at)
        self._way.expansion.judged(accepted + 1, ms)
        self._news.judged(self._way.kind, len(draft.tokens), self._experience.prices.last)
        if self._calibration is not None and self._way is not self._usual:
            self._calibration.judged(self._way.experts, accepted, looked_at)

    def close(self) -> None:
        self._sampler.close()

    def _way_of(self, experts: int, expansion: type[Fixed | Priced]) -> _Way:
        kind = self._experience.kind(self._kind, experts)
        return _Way(experts, kind, kind.acceptance(greedy=self._greedy), expansion(kind))

    def _way_to_try(self) -> _Way | None:
        """Where this block is to find something out."""
        experts = self._calibration.experts() if self._calibration is not None else None
        return None if experts is None else self._way_of(experts, Sampled)

    def _step(self, cells: Context, token: int, position: int) -> npt.NDArray[np.int32] | None:
        """Decodes `token`; returns the experts the target would choose for it, I32 [layers, k]."""
        started = time.perf_counter()
        cells.decode((token,), position, all_logits=True)
        self._way.kind.stepped(1e3 * (time.perf_counter() - started))
        return self._session.chosen_experts(cells.hooks)

    @contextmanager
    def _drafting(self, start: int) -> Iterator[Context]:
        """Few experts inside; afterwards the cache is as it was."""
        cells = self._caught_up() if self._apart else self._session.target
        from_memory = self._speculation.resident_only
        with self._session.drafting(self._way.experts, from_memory=from_memory, hooks=cells.hooks):
            try:
                yield cells
            finally:
                cells.cut(start)

    def _caught_up(self) -> Context:
        """The context apart, which has read all that the target has.

        It reads experts from disk for that, where it must: the target has just used those of the same tokens,
        and what it announced would be of no use to the next verify pass.
        """
        apart, tokens = self._session.annex.take(), self._session.timeline.tokens
        experts, at_once = self._way.experts, self._session.plan.n_ubatch
        with self._session.drafting(experts, from_memory=False, hooks=apart.cells.hooks):
            for at in range(apart.keep(tokens, experts), len(tokens), at_once):
                apart.read(tokens[at : at + at_once])
        return apart.cells
