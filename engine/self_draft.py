"""Drafts by the target itself with k' of its k experts, on the target's own KV cache (S2-MoE, section
4.3), or for comparison in a context apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.acceptance import Acceptance
from engine.draft import Draft
from engine.expansion import EXPANSIONS, Expansion, Fixed, Priced, Sampled
from engine.experience import DraftKind, Experience
from engine.growth import Growth, News, Node, Offer
from engine.logprobs import logits_of
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
    siblings: Acceptance
    expansion: Expansion
    width: int


class _Draws:
    """Copies of the target's sampler, each a draw further than the one before: the random number that a node
    gets depends on its depth alone. Chains need but one."""

    def __init__(self, make: Callable[[], Sampler]) -> None:
        self._make, self._samplers = make, [make()]
        self._is_chain = True

    def begin(self, target: Sampler, *, is_chain: bool) -> None:
        self._is_chain = is_chain
        self._samplers[0].copy_from(target)

    def draw(self, cells: Context, depth: int) -> int:
        """What follows a node so far behind the root, whose logits are those of the last pass."""
        if self._is_chain:
            return self._samplers[0].draw(cells.handle, 0)
        if depth + 1 == len(self._samplers):
            self._samplers.append(self._make())
        sampler = self._samplers[depth + 1]
        sampler.copy_from(self._samplers[depth])
        return sampler.draw(cells.handle, 0)

    def close(self) -> None:
        for sampler in self._samplers:
            sampler.close()


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
        reuse = request.speculation.reuse
        leaning = "" if reuse is None else "budget" if reuse.restricts else "leaning"
        expansion = EXPANSIONS[request.speculation.expands_by]
        # Not where a row's company counts, and a grammar would have to be followed along each branch.
        self._may_branch = not (self._apart or leaning or request.grammar) and session.can_branch
        # Drafts fare otherwise where verify passes lean, where they are made apart, and where they branch.
        branches = self._may_branch and expansion.width > 1
        self._kind = "apart" if self._apart else leaning or ("tree" if branches else self.name)
        if self._apart:
            session.annex.take()
        self._ends = not request.ignore_eos
        self._news = News()
        self._offers: list[list[Offer]] = []  # of a block that might branch, by row
        self._way = self._usual = self._way_of(request.speculation.draft_experts, expansion)
        self._draws = _Draws(lambda: Sampler.of(request, session))

    def begin(self) -> None:
        if self._apart:
            self._caught_up()

    def propose(self, root: int, length: int, target: Sampler) -> Draft:
        """The root's step, then one for each candidate that is worth it; the last one allowed needs none."""
        way = self._way = self._way_to_try() or self._usual
        length = way.expansion.limit(length)
        if not length:
            return Draft(source=self.name)
        start = len(self._session.timeline)
        self._draws.begin(target, is_chain=way.width == 1)
        with self._drafting(start) as cells:
            union = self._session.expert_union()
            growth = Growth(root, length, way.expansion, union, lambda node: self._step(cells, node, start))
            growth.grow()
        self._news, rows = growth.news, list(growth.rows(start))
        self._offers = [growth.root.offers, *(node.offers for node, _ in rows)] if way.width > 1 else []
        parents = [parent for _, parent in rows]
        return Draft(
            [node.token for node, _ in rows],
            [node.claim for node, _ in rows],
            self.name,
            [] if parents == list(range(len(rows))) else parents,
        )

    def judged(self, draft: Draft, accepted: int, looked_at: int, ms: float) -> None:
        if draft.source != self.name:
            return
        if self._offers:
            self._learn(draft)
        else:
            self._way.acceptance.learn(draft.claims, accepted, looked_at)
        self._way.expansion.judged(accepted + 1, ms)
        self._news.judged(self._way.kind, len(draft.tokens), self._experience.prices.last)
        if self._calibration is not None and self._way is not self._usual:
            self._calibration.judged(self._way.experts, accepted, looked_at)

    def close(self) -> None:
        self._draws.close()

    def _learn(self, draft: Draft) -> None:
        """Where the target drew it might have drawn what was offered, verified or not."""
        for row, drawn in zip((0, *draft.path(draft.drawn)), draft.drawn, strict=False):
            for offer in self._offers[row]:
                table = self._way.acceptance if offer.drawn else self._way.siblings
                table.judged(offer.claim, offer.token == drawn)

    def _way_of(self, experts: int, expansion: type[Fixed | Priced]) -> _Way:
        kind = self._experience.kind(self._kind, experts)
        accepted, width = kind.acceptance(greedy=self._greedy), expansion.width if self._may_branch else 1
        siblings = kind.siblings(greedy=self._greedy) if width > 1 else accepted
        return _Way(experts, kind, accepted, siblings, expansion(kind), width)

    def _way_to_try(self) -> _Way | None:
        """Where this block is to find something out."""
        experts = self._calibration.experts() if self._calibration is not None else None
        return None if experts is None else self._way_of(experts, Sampled)

    def _step(self, cells: Context, node: Node, start: int) -> None:
        """Decodes `node`; finds the experts the target would choose for it, and what may follow it."""
        started, parent = time.perf_counter(), node.parent
        if parent is not None and node.branch != parent.branch and cells.branches is not None:
            cells.branches.fork(parent.branch, node.branch, start, start + node.depth)
        cells.decode_in(node.branch, node.token, start + node.depth)
        self._way.kind.stepped(1e3 * (time.perf_counter() - started))
        node.chosen = self._session.chosen_experts(cells.hooks)
        drawn = self._draws.draw(cells, node.depth)
        node.offers = [
            self._offer(cells, token, drawn=token == drawn)
            for token in (drawn, *self._beside(cells, drawn))
            if not (self._ends and self._session.vocab.is_end(token))  # the target says itself where it ends
        ]

    def _offer(self, cells: Context, token: int, *, drawn: bool) -> Offer:
        claim = cells.hooks.token_probability(0, token)
        table = self._way.acceptance if drawn else self._way.siblings
        return Offer(token, claim, table.chance(claim), drawn)

    def _beside(self, cells: Context, drawn: int) -> list[int]:
        """The likeliest tokens beside the `drawn` one, as many as the queue takes."""
        if self._way.width == 1:
            return []
        logits = logits_of(cells.handle, 0, len(self._session.vocab))
        found, kept = [drawn], list[float]()
        while len(found) <= self._way.width:  # one more than is wanted, so that each has been taken out
            kept.append(float(logits[found[-1]]))
            logits[found[-1]] = -np.inf
            found.append(int(logits.argmax()))
        for token, value in zip(found, kept, strict=False):
            logits[token] = value
        return found[1 : self._way.width]

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
