"""The priced queue with branches: what it decodes, what it admits, and where the rows come to lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from engine.branches import BRANCHES, CHUNK, depths_of, keeps_order, ways_of
from engine.draft import Draft
from engine.expansion import EXPANSIONS, Fixed, Priced, Tree
from engine.experience import DraftKind
from engine.growth import Growth, Node, Offer
from engine.prices import Load, Prices
from engine.union import ExpertUnion

Offers = Mapping[str, Sequence[tuple[str, float]]]


def name_of(node: Node) -> str:
    return chr(node.token)


class Model:
    """What it offers behind each token, by name; the first of each is the drawn one. `decoded`, in order."""

    def __init__(self, offers: Offers, experts: Mapping[str, Sequence[int]] | None = None) -> None:
        self._offers, self._experts = offers, experts or {}
        self.decoded: list[str] = []
        self.forked: list[tuple[int, int]] = []

    def step(self, node: Node) -> None:
        self.decoded.append(name_of(node))
        if node.parent is not None and node.branch != node.parent.branch:
            self.forked.append((node.parent.branch, node.branch))
        node.offers = [
            Offer(ord(token), chance, chance, drawn=not i)
            for i, (token, chance) in enumerate(self._offers.get(name_of(node), ()))
        ]
        if self._experts:
            node.chosen = np.array([self._experts[name_of(node)]], np.int32)


class Bound(Fixed):
    """Decodes and admits what is likelier than its bounds."""

    def __init__(self, decode: float, admit: float) -> None:
        self._decode, self._admit = decode, admit

    def worth_drafting(self, chance: float) -> bool:
        return chance >= self._decode

    def worth_verifying(self, chance: float, news: Load | None) -> bool:
        return chance * 1.0001 >= self._admit * (1.0 if news is None else news.experts)


FORK: Offers = {"r": [("a", 0.6), ("b", 0.3)], "a": [("c", 0.5), ("d", 0.4)], "b": [("e", 0.9)]}


def grown(model: Model, most: int, expansion: Fixed | Priced, union: ExpertUnion | None = None) -> Growth:
    growth = Growth(ord("r"), most, expansion, union, model.step)
    growth.grow()
    return growth


def rows(growth: Growth, start: int = 0) -> list[tuple[str, int]]:
    return [(name_of(node), parent) for node, parent in growth.rows(start)]


def test_the_likeliest_goes_first_whatever_its_depth() -> None:
    model = Model(FORK)
    growth = grown(model, 8, Bound(0.28, 0.2))
    assert model.decoded == ["r", "a", "b", "c"], "0.6, then 0.3 before 0.6 * 0.5 was offered later"
    assert model.forked == [(0, 1)], "what is decoded second behind a node leaves its sequence"
    assert rows(growth) == [("a", 0), ("c", 1), ("d", 1), ("b", 0), ("e", 4)]


def test_a_leaf_needs_no_step() -> None:
    model = Model(FORK)
    growth = grown(model, 8, Bound(0.5, 0.24))
    assert model.decoded == ["r", "a"]
    assert rows(growth) == [("a", 0), ("c", 1), ("d", 1), ("b", 0)]


def test_siblings_that_do_not_pay_leave_a_chain() -> None:
    growth = grown(Model(FORK), 8, Bound(0.0, 0.305))
    assert rows(growth) == [("a", 0)]
    sure = {"r": [("a", 0.9), ("b", 0.05)], "a": [("c", 0.9), ("d", 0.05)]}
    growth = grown(Model(sure), 8, Bound(0.5, 0.1))
    assert rows(growth) == [("a", 0), ("c", 1)]


@pytest.mark.parametrize("most", range(1, 9))
def test_no_more_rows_and_no_more_cells_than_there_may_be(most: int) -> None:
    many: dict[str, list[tuple[str, float]]] = {}
    for token in "rabcdefghij":
        many[token] = [("a", 0.5), ("b", 0.3), ("c", 0.2)]
    model = Model(many)
    growth = grown(model, most, Fixed(DraftKind(Prices())))
    assert len(rows(growth)) == most
    assert len(model.decoded) <= most


def test_no_more_leaves_than_sequences() -> None:
    wide = {"r": [(chr(ord("A") + i), 0.05) for i in range(20)]}
    growth = grown(Model(wide), 31, Fixed(DraftKind(Prices())))
    assert len(rows(growth)) == BRANCHES
    model = Model({"r": [("r", 0.9), *((chr(ord("A") + i), 0.4) for i in range(5))]})
    parents = [parent for _, parent in rows(grown(model, 31, Fixed(DraftKind(Prices()))))]
    assert len(parents) > BRANCHES, "a way may go on where there is no room for another"
    assert len(ways_of(parents)[0]) == BRANCHES
    assert all(0 < branch < BRANCHES for _, branch in model.forked)


def test_what_was_too_dear_is_priced_again_when_the_pass_asks_for_more() -> None:
    """`b` shares its experts with `c`, which is only known later."""
    offers = {"r": [("a", 0.9), ("b", 0.5)], "a": [("c", 0.5)]}
    experts = {"r": (0, 1), "a": (0, 2), "b": (3, 4), "c": (3, 4)}
    model = Model(offers, experts)
    growth = grown(model, 8, Bound(0.0, 0.3), ExpertUnion(1, 8, None))
    assert "b" not in {name for name, _ in rows(growth)}, "two new experts are too dear for it"
    experts["c"] = (0, 3)
    growth = grown(Model(offers, experts), 8, Bound(0.0, 0.3), ExpertUnion(1, 8, None))
    assert {name for name, _ in rows(growth)} == {"a", "b", "c"}
    assert growth.news.root == 2
    assert (growth.news.known, growth.news.count) == (3, 3)


def test_a_chain_is_a_queue_of_one() -> None:
    line = {a: [(b, 0.9)] for a, b in zip("rabcdefg", "abcdefgh", strict=True)}
    model = Model(line)
    growth = grown(model, 5, Fixed(DraftKind(Prices())))
    assert model.decoded == list("rabcd"), "the last one that may be drafted needs no step"
    assert rows(growth) == [(token, i) for i, token in enumerate("abcde")]
    assert not model.forked


def test_rows_that_would_be_added_up_otherwise_are_left_out() -> None:
    """Whoever lies in another chunk than its position does is dropped, and what follows it."""
    growth = grown(Model(FORK), 8, Bound(0.28, 0.2))
    assert rows(growth, CHUNK - 3) == [("a", 0), ("c", 1)], "the third row lies in the next chunk"
    assert rows(growth, CHUNK - 2) == [("a", 0), ("c", 1), ("d", 1)], "where depth 2 belongs here"
    assert rows(growth, CHUNK) == rows(growth, 0)
    for start in range(CHUNK - 8, CHUNK + 2):
        kept = rows(growth, start)
        depths = depths_of([parent for _, parent in kept])
        assert all(keeps_order(start, row, depth) for row, depth in enumerate(depths))


def test_each_leaf_is_a_way_and_inner_rows_carry_those_behind_them() -> None:
    assert ways_of([]) == [[0]]
    assert ways_of([0, 1, 2]) == [[0]] * 4
    assert ways_of([0, 1, 0, 3, 1]) == [[0, 1, 2], [0, 2], [0], [1], [1], [2]]


def test_a_tree_is_followed_by_what_was_drawn() -> None:
    tree = Draft([10, 20, 30, 40], [0.5] * 4, "self", [0, 0, 2, 2])
    assert tree.path([20, 40, 7]) == [2, 4]
    assert tree.path([10, 30]) == [1]
    assert tree.path([5]) == []
    assert tree.by_fate([20, 40, 7]) == [20, 40, 10, 30]
    chain = Draft([10, 20, 30], [0.5] * 3)
    assert chain.path([10, 20, 31]) == [1, 2]
    assert chain.path([10, 20, 30, 4]) == [1, 2, 3]
    assert chain.by_fate([10, 21]) == chain.tokens


def prices(*, position: float, step: float) -> DraftKind:
    """Plain decode costs 10; a place in the pass and a draft step as they are told."""
    known = Prices()
    for i in range(200):
        known.passed(Load(1), 10.0)
        if i % 4 == 0:
            known.passed(Load(5), 10.0 + 4 * position)
    for _ in range(20):
        known.passed(Load(1), 10.0)
    kind = DraftKind(known)
    kind.stepped(step)
    return kind


@pytest.mark.parametrize(
    ("position", "step", "expected"),
    [
        (9.0, 5.0, []),
        (4.0, 20.0, [("a", 0)]),
        (2.0, 20.0, [("a", 0), ("b", 0)]),
        (0.5, 3.0, [("a", 0), ("c", 1), ("d", 1), ("b", 0)]),
    ],
    ids=["nothing pays", "a chain", "leaves only", "a tree"],
)
def test_prices_decide_between_nothing_a_chain_and_a_tree(
    position: float, step: float, expected: list[tuple[str, int]]
) -> None:
    tree = Tree(prices(position=position, step=step))
    assert rows(grown(Model(FORK), 8, tree)) == expected


def test_only_the_tree_is_wide() -> None:
    assert [name for name, expansion in EXPANSIONS.items() if expansion.width > 1] == ["tree"]
