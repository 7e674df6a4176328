"""G3, G5, G10 for trees: whatever branches a block has and whichever is accepted, text and KV cache are those of
plain decode, and nothing is left of the others."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from decoding import Answer, answer, cache_bytes, prompt_of, request
from toys import plan_for

from engine.branches import BRANCHES, CHUNK, keeps_order, ways_of
from engine.draft import Draft
from engine.paths import EMBEDDED_MODEL
from engine.sampler import Sampler
from engine.session import Session


class Bush:
    """Proposes what the answer will be along one way of a random tree, and wrong tokens along all others."""

    def __init__(
        self, ids: Sequence[int], session: Session, start: int, seed: int, *, ordered: bool = True
    ) -> None:
        self._ids, self._session, self._start = list(ids), session, start
        self._random, self._ordered = random.Random(seed), ordered
        self.moved = self.trees = self.left_out = 0

    def begin(self) -> None: ...

    def propose(self, root: int, length: int, target: Sampler) -> Draft:  # noqa: ARG002
        at = len(self._session.timeline) - self._start  # the root is ids[at]
        assert self._ids[at] == root
        draft, right, depths = Draft(source="script"), {0: 0}, [0]  # rows that are right, by their depth
        goes_on = self._random.randrange(length + 1)
        for _ in range(length):
            parent = self._random.choice((max(right), self._random.randrange(len(depths))))
            depth = depths[parent] + 1
            truth = self._ids[at + depth : at + depth + 1]
            is_right = right.get(parent) == depth - 1 and depth <= goes_on and depth not in right.values()
            if not truth:
                continue
            token = truth[0] if is_right and self._random.random() < 0.7 else self._wrong(draft, parent, truth[0])
            row = len(depths)
            if len(ways_of([*draft.parents, parent])[0]) > BRANCHES:
                continue
            if self._ordered and not keeps_order(len(self._session.timeline), row, depth):
                self.left_out += 1
                continue
            draft.tokens.append(token)
            draft.claims.append(0.5)
            draft.parents.append(parent)
            depths.append(depth)
            if token == truth[0] and is_right:
                right[row] = depth
        path = [0, *draft.path(self._ids[at + 1 :])]
        self.moved += path != list(range(len(path)))
        self.trees += len(ways_of(draft.parents)[0]) > 1
        return draft

    def _wrong(self, draft: Draft, parent: int, truth: int) -> int:
        """No sibling's token, and not the right one."""
        taken = {truth, *(t for t, p in zip(draft.tokens, draft.parents, strict=True) if p == parent)}
        return next(t for t in iter(lambda: self._random.randrange(1000, 20000), -1) if t not in taken)

    def judged(self, draft: Draft, accepted: int, looked_at: int, ms: float) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(scope="module", params=[None, 0.25], ids=["whole", "25 %"])
def held(request: pytest.FixtureRequest) -> Iterator[Session]:
    """The embedded model with all its experts in memory, or only a share of them."""
    session = Session.load(EMBEDDED_MODEL, plan_for(EMBEDDED_MODEL, n_ctx=2048, n_threads=1, store=True))
    assert session.store is not None
    if request.param is not None:
        session.store.resize(int(session.store.bytes_all * request.param))
    yield session
    session.close()


def check_same(plain: Answer, drafted: Answer) -> None:
    assert drafted.ids == plain.ids
    assert (drafted.text, drafted.reason, drafted.cells) == (plain.text, plain.reason, plain.cells)
    assert drafted.cache == plain.cache, "equal tokens, but another KV cache"


@pytest.mark.parametrize(("cells", "heat", "seed"), [(100, 0.0, 1), (500, 0.8, 2), (245, 0.8, 3), (600, 0.0, 4)])
def test_trees_are_exact(held: Session, passage: str, cells: int, heat: float, seed: int) -> None:
    prompt = prompt_of(held, passage, cells)
    plain = answer(held, request(prompt, temperature=heat, tokens=48))
    bush = Bush(plain.ids, held, len(prompt), seed)
    drafted = answer(held, request(prompt, mode="s2-exact", length=12, temperature=heat, tokens=48), bush)
    check_same(plain, drafted)
    assert bush.trees >= 3
    assert bush.moved >= 3, "accepted branches were not in their places"
