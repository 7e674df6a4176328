"""The priced queue: which candidates a draft decodes, and which of them go into the verify pass (S2-MoE,
section 4.1).

Candidates from all depths stand in one queue, likeliest first. Where a node offers nothing but the token that
was drawn there, that is a chain; with siblings it is a tree, admitted by the same prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np
import numpy.typing as npt

from engine.branches import BRANCHES, keeps_order
from engine.expansion import Expansion
from engine.experience import DraftKind
from engine.prices import Load
from engine.union import ExpertUnion


@dataclass(frozen=True, slots=True)
class Offer:
    """A token that may follow a node. `claim`: its probability there by the draft; `chance`: that the target
    draws it there. `drawn`: it is what the draft itself drew; the others are siblings of that."""

    token: int
    claim: float
    chance: float
    drawn: bool = True


@dataclass(slots=True, eq=False)
class Node:
    """A candidate. `chance`: that it and all before it are accepted. `branch`: the sequence that holds its
    draft cell, once it has one; `carried_on`: whether that goes on to a child of it."""

    token: int
    claim: float = 1.0
    chance: float = 1.0
    drawn: bool = True
    parent: Node | None = None
    depth: int = 0
    branch: int = 0
    carried_on: bool = False
    chosen: npt.NDArray[np.int32] | None = None
    offers: list[Offer] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)


@dataclass(slots=True)
class News:
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


class Growth:
    """One block's draft, from its root. `step` decodes a node with the draft, behind its parent in the
    sequence `branch`, and sets `chosen` and `offers`. At most `most` nodes are admitted, and steps made."""

    def __init__(
        self,
        root: int,
        most: int,
        expansion: Expansion,
        union: ExpertUnion | None,
        step: Callable[[Node], None],
    ) -> None:
        self.root = Node(root)
        self.news = News()
        self._most, self._expansion, self._union, self._step = most, expansion, union, step
        self._queue: list[tuple[float, int, Node]] = []
        self._order = count()  # of equals the one offered first
        self._aside: list[Node] = []  # decoded, but too dear for what the pass asked for then
        self._count = self._steps = 0
        self._leaves = self._branches = 1

    def grow(self) -> None:
        """Until nothing that is left is worth its price, or the pass is full."""
        self._decode(self.root)
        self._enter(self.root)
        while self._queue and self._count < self._most:
            node = heappop(self._queue)[2]
            if not self._fits(node):
                continue
            if self._may_decode(node) and self._expansion.worth_drafting(node.chance):
                self._decode(node)
                self._aside.append(node)
                self._admit_decoded()
            elif self._expansion.worth_verifying(node.chance, None):
                self._admit(node)

    def rows(self, start: int) -> Iterator[tuple[Node, int]]:
        """The admitted nodes and the rows they follow, in the order of a pass whose root is at `start`.

        The likeliest way comes first: if that is accepted, its cells are in their places. Left out is what
        would not see its cells as plain decode does, and what follows it.
        """
        row = 0
        waiting = [(self.root, 0)]
        while waiting:
            node, parent = waiting.pop()
            if node is not self.root:
                if not keeps_order(start, row + 1, node.depth):
                    continue
                row += 1
                yield node, parent
            waiting += [(child, row) for child in sorted(node.children, key=_by_chance)]

    def _admit_decoded(self) -> None:
        """There is one more candidate; and with each admission the others may have become cheap enough."""
        while self._count < self._most:
            node = next((node for node in self._aside if self._fits(node) and self._pays(node)), None)
            if node is None:
                return
            self._aside.remove(node)
            self._enter(node)
            self._admit(node)

    def _pays(self, node: Node) -> bool:
        return self._expansion.worth_verifying(node.chance, self._news(node))

    def _news(self, node: Node) -> Load | None:
        if self._union is None or node.chosen is None:
            return None
        return self._union.news(node.chosen)

    def _enter(self, node: Node) -> None:
        """Its experts belong to the pass, and what it offers may follow."""
        news = self._news(node)
        if self._union is not None and node.chosen is not None and news is not None:
            self._union.add(node.chosen)
            self.news.add(news, is_root=node is self.root)
        for offer in node.offers:
            child = Node(
                offer.token, offer.claim, node.chance * offer.chance, offer.drawn, node, node.depth + 1
            )
            heappush(self._queue, (-child.chance, next(self._order), child))

    def _admit(self, node: Node) -> None:
        assert node.parent is not None
        self._leaves += bool(node.parent.children)
        node.parent.children.append(node)
        self._count += 1

    def _fits(self, node: Node) -> bool:
        """Whether there is a sequence for the leaf that it adds."""
        assert node.parent is not None
        return not node.parent.children or self._leaves < BRANCHES

    def _may_decode(self, node: Node) -> bool:
        """Whether a step is of any use, and has a cell and a sequence."""
        assert node.parent is not None
        has_branch = not node.parent.carried_on or self._branches < BRANCHES
        return self._count + 1 < self._most and self._steps < self._most and has_branch

    def _decode(self, node: Node) -> None:
        if node.parent is not None:
            node.branch = node.parent.branch
            if node.parent.carried_on:
                node.branch, self._branches = self._branches, self._branches + 1
            node.parent.carried_on = True
        self._steps += 1
        self._step(node)


def _by_chance(node: Node) -> float:
    return node.chance
