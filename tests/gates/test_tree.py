"""G3, G5, G10 for trees: whatever branches a block has and whichever is accepted, text and KV cache are
those of plain decode, and nothing is left of the others."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from decoding import Answer, Loader, answer, prompt_of, request
from toys import plan_for

from engine.branches import BRANCHES, CHUNK, SEQUENCES, Branches, keeps_order, ways_of
from engine.context import Context
from engine.draft import Draft
from engine.errors import NativeError
from engine.events import Block, Done, Tokens
from engine.expansion import EXPANSIONS, Fixed
from engine.loop import generate
from engine.native import CancelFlag, llama
from engine.paths import EMBEDDED_MODEL
from engine.request import CACHE_TYPES, Request
from engine.sampler import Sampler
from engine.session import Session
from engine.watch import Watch


class Scripted:
    """A drafter that makes its trees without the model. `ids`: what the answer will be, behind a prompt of
    `start` tokens."""

    def __init__(self, ids: Sequence[int], session: Session, start: int) -> None:
        self._ids, self._session, self._start = list(ids), session, start

    def begin(self) -> None: ...

    def propose(self, root: int, length: int, target: Sampler) -> Draft:  # noqa: ARG002
        at = len(self._session.timeline) - self._start
        assert self._ids[at] == root
        return self.tree(self._ids[at + 1 :], length)

    def tree(self, coming: Sequence[int], length: int) -> Draft:
        """Of at most `length` tokens; `coming` is what the target will draw."""
        raise NotImplementedError

    def judged(self, draft: Draft, accepted: int, looked_at: int, ms: float) -> None: ...

    def close(self) -> None: ...


class Bush(Scripted):
    """What the answer will be along one way of a random tree, and wrong tokens along all others."""

    def __init__(self, ids: Sequence[int], session: Session, start: int, seed: int) -> None:
        super().__init__(ids, session, start)
        self._random = random.Random(seed)
        self.trees = self.moved = self.left_out = 0

    def tree(self, coming: Sequence[int], length: int) -> Draft:
        draft, depths = Draft(source="script"), [0]
        right, goes_on = 0, self._random.randrange(length + 1)  # the last row the answer goes along
        for _ in range(length):
            parent = self._random.choice((right, self._random.randrange(len(depths))))
            depth = depths[parent] + 1
            if depth > len(coming) or not self._fits(draft, parent, depth):
                continue
            goes_right = parent == right and depth <= goes_on and self._random.random() < 0.6
            token = coming[depth - 1] if goes_right else self._random.randrange(1000, 20000)
            if token in coming and not goes_right:
                continue
            draft.tokens.append(token)
            draft.claims.append(0.5)
            draft.parents.append(parent)
            depths.append(depth)
            if goes_right:
                right = len(depths) - 1
        path = [0, *draft.path(coming)]
        self.trees += len(ways_of(draft.parents)[0]) > 1
        self.moved += path != list(range(len(path)))
        return draft

    def _fits(self, draft: Draft, parent: int, depth: int) -> bool:
        in_order = keeps_order(len(self._session.timeline), len(draft.tokens) + 1, depth)
        self.left_out += not in_order
        return in_order and len(ways_of([*draft.parents, parent])[0]) <= BRANCHES


class Second(Scripted):
    """Each token of the answer is its node's second child, behind `others` wrong ones."""

    def __init__(
        self, ids: Sequence[int], session: Session, start: int, *, others: int = 1, wrong_from: int = 99
    ) -> None:
        super().__init__(ids, session, start)
        self._others, self._wrong_from = others, wrong_from

    def tree(self, coming: Sequence[int], length: int) -> Draft:
        draft, parent = Draft(source="script"), 0
        for depth, token in enumerate(coming[: length // (self._others + 1)]):
            wrong = [t for t in range(1000, 1100) if t not in coming]
            right = wrong[-1] if depth >= self._wrong_from else token
            draft.tokens.extend([*wrong[: self._others], right])
            draft.parents.extend([parent] * (self._others + 1))
            parent = len(draft.tokens)
        draft.claims.extend([0.5] * len(draft.tokens))
        return draft


class Wide(Fixed):
    """Decodes and admits whatever is likeliest."""

    width = 3


def load(n_ctx: int) -> Session:
    return Session.load(EMBEDDED_MODEL, plan_for(EMBEDDED_MODEL, n_ctx=n_ctx, n_threads=1, store=True))


@pytest.fixture(scope="module")
def whole() -> Iterator[Session]:
    with load(2048) as session:
        yield session


@pytest.fixture(scope="module")
def short() -> Iterator[Session]:
    """Its context is full after 512 tokens."""
    with load(512) as session:
        yield session


@pytest.fixture(params=[1.0, 0.25], ids=["whole", "25 %"])
def held(whole: Session, request: pytest.FixtureRequest) -> Iterator[Session]:
    """With all experts in memory, or only a share of them."""
    assert whole.store is not None
    whole.store.resize(int(whole.store.bytes_all * request.param))
    yield whole
    whole.store.resize(whole.store.bytes_all)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The parents of each tree that is decoded."""
    seen: list[list[int]] = []
    decode_tree = Context.decode_tree

    def noted(self: Context, tokens: Sequence[int], parents: Sequence[int], start: int) -> None:
        seen.append(list(parents))
        decode_tree(self, tokens, parents, start)

    monkeypatch.setattr(Context, "decode_tree", noted)
    return seen


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Request]:
    """Requests whose drafts branch wherever they may."""
    monkeypatch.setitem(EXPANSIONS, "tree", Wide)

    def asked(prompt: tuple[int, ...], **settings: object) -> Request:
        chosen = {"mode": "s2-exact", "expansion": "tree", "length": 8, "tokens": 24, **settings}
        return request(prompt, **chosen)  # type: ignore[arg-type]

    return asked


def check_same(plain: Answer, drafted: Answer) -> None:
    assert drafted.ids == plain.ids
    assert (drafted.text, drafted.reason, drafted.cells) == (plain.text, plain.reason, plain.cells)
    assert drafted.cache == plain.cache, "equal tokens, but another KV cache"


CASES = [(100, 0.0, 1), (500, 0.8, 2), (245, 0.8, 3), (600, 0.0, 4)]


@pytest.mark.parametrize(("cells", "heat", "seed"), CASES)
def test_trees_are_exact(held: Session, passage: str, cells: int, heat: float, seed: int) -> None:
    """Of every shape, on both sides of where attention begins another chunk of cells."""
    prompt = prompt_of(held, passage, cells)
    plain = answer(held, request(prompt, temperature=heat, tokens=36))
    bush = Bush(plain.ids, held, len(prompt), seed)
    drafted = answer(held, request(prompt, mode="s2-exact", length=12, temperature=heat, tokens=36), bush)
    check_same(plain, drafted)
    assert bush.trees >= 3
    assert bush.moved >= 2, "accepted branches were not in their places"
    assert bush.left_out or cells in (100, 600)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("heat", [0.0, 0.8])
@pytest.mark.parametrize("cells", [100, 600, 2100, 6000])
@pytest.mark.parametrize("cache_type", CACHE_TYPES)
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_trees_are_exact_in_every_setting(
    loader: Loader, passage: str, threads: int, cache_type: str, cells: int, heat: float, seed: int
) -> None:
    session = loader.get(threads=threads, cache_type=cache_type)
    prompt = prompt_of(session, passage, cells)
    plain = answer(session, request(prompt, temperature=heat, tokens=64))
    bush = Bush(plain.ids, session, len(prompt), seed)
    asked = request(prompt, mode="s2-exact", length=31, temperature=heat, tokens=64)
    check_same(plain, answer(session, asked, bush))
    assert bush.trees > 0


@pytest.mark.parametrize(("cells", "heat"), [(247, 0.0), (600, 0.8)])
def test_trees_that_the_model_drafts_are_exact(
    held: Session,
    passage: str,
    cells: int,
    heat: float,
    wide: Callable[..., Request],
    passes: list[list[int]],
) -> None:
    """How often the target takes a branch hangs on the text: other parts are read until it did."""
    accepted = 0
    for at in (0, 3000, 6000, 9000, 12000, 15000):
        prompt = prompt_of(held, passage[at:], cells)
        plain = answer(held, request(prompt, temperature=heat, tokens=160))
        drafted = answer(held, wide(prompt, temperature=heat, tokens=160))
        check_same(plain, drafted)
        accepted += drafted.timings.draft_n_accepted
        if len(passes) >= 3:
            break
    assert len(passes) >= 3
    assert accepted > 0


def test_the_default_prices_are_exact(
    held: Session, passage: str, passes: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place in the pass costs nothing here and drafts always pay, so they branch, however fast the machine;
    other texts are read until the target took a branch."""
    monkeypatch.setattr("engine.prices.Prices.more_ms", lambda _: 0.0)
    monkeypatch.setattr("engine.trial.Trial.due", lambda _: True)
    for at in (0, 3000, 6000, 9000, 12000, 15000):
        prompt = prompt_of(held, passage[at:], 600)
        plain = answer(held, request(prompt, temperature=0.8, tokens=40))
        asked = request(prompt, mode="s2-exact", expansion="tree", length=8, temperature=0.8, tokens=40)
        check_same(plain, answer(held, asked))
        if passes:
            return
    pytest.fail("the target took no branch")


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_every_depth_of_a_branch_is_carried_to_its_place(passage: str, cache_type: str) -> None:
    threads = 1 if cache_type == "f16" else 2
    plan = plan_for(EMBEDDED_MODEL, n_ctx=1024, n_threads=threads, cache_type=cache_type)
    with Session.load(EMBEDDED_MODEL, plan) as session:
        prompt = prompt_of(session, passage, 90)
        plain = answer(session, request(prompt, temperature=0.8, tokens=16))
        asked = request(prompt, mode="s2-exact", length=12, temperature=0.8, tokens=16)
        for wrong_from in range(7) if cache_type == "f16" else (0, 3, 6):
            second = Second(plain.ids, session, len(prompt), wrong_from=wrong_from)
            drafted = answer(session, asked, second)
            check_same(plain, drafted)
            assert (drafted.timings.draft_n_accepted > 0) == (wrong_from > 0)


def test_as_many_leaves_as_there_are_sequences(whole: Session, passage: str, passes: list[list[int]]) -> None:
    prompt = prompt_of(whole, passage, 90)
    plain = answer(whole, request(prompt, tokens=12))
    second = Second(plain.ids, whole, len(prompt), others=BRANCHES - 1)
    check_same(plain, answer(whole, request(prompt, mode="s2-exact", length=7, tokens=12), second))
    assert max(len(ways_of(parents)[0]) for parents in passes) == BRANCHES
    assert llama().llama_n_seq_max(whole.context) == SEQUENCES


def test_the_gate_can_fail(whole: Session, passage: str) -> None:
    """A branch beyond the chunk of its position is added up otherwise, and the comparison sees it."""
    prompt = prompt_of(whole, passage, CHUNK - 2)
    plain = answer(whole, request(prompt, tokens=8))
    second = Second(plain.ids, whole, len(prompt), others=2)
    drafted = answer(whole, request(prompt, mode="s2-exact", length=6, tokens=8), second)
    assert drafted.cache != plain.cache


def test_the_gate_sees_a_branch_that_stays_where_it_was(
    whole: Session, passage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(whole, passage, 90)
    plain = answer(whole, request(prompt, tokens=12))
    monkeypatch.setattr(Branches, "_carry", lambda *_: None)
    second = Second(plain.ids, whole, len(prompt))

    def compare() -> None:
        check_same(plain, answer(whole, request(prompt, mode="s2-exact", length=6, tokens=12), second))

    with pytest.raises(AssertionError):  # of the comparison, or of the script that finds another text
        compare()


@pytest.mark.parametrize("tokens", range(2, 8))
def test_an_answer_may_end_at_any_node(whole: Session, passage: str, tokens: int) -> None:
    prompt = prompt_of(whole, passage, 90)
    whole_ids = answer(whole, request(prompt, tokens=20)).ids
    plain = answer(whole, request(prompt, tokens=tokens))
    second = Second(whole_ids, whole, len(prompt))
    drafted = answer(whole, request(prompt, mode="s2-exact", length=12, tokens=tokens), second)
    check_same(plain, drafted)
    assert len(drafted.ids) == drafted.timings.predicted_n == tokens


def last_positions(session: Session) -> list[int]:
    memory = llama().llama_get_memory(session.context)
    return [llama().llama_memory_seq_pos_max(memory, number) for number in range(SEQUENCES)]


@pytest.mark.parametrize("wrong_from", [0, 1, 99], ids=["rejected", "one accepted", "accepted"])
def test_rejected_branches_leave_no_trace(whole: Session, passage: str, wrong_from: int) -> None:
    """No cell behind the answer's, in any sequence and after each block; in the end there is one sequence."""
    prompt = prompt_of(whole, passage, 90)
    ids = answer(whole, request(prompt, tokens=24)).ids
    second = Second(ids, whole, len(prompt), wrong_from=wrong_from)
    asked, blocks = request(prompt, mode="s2-exact", length=8, tokens=24), 0
    for event in generate(whole, asked, CancelFlag(), second):
        if isinstance(event, Tokens):
            first, *others = last_positions(whole)
            assert first == len(whole.timeline) - 1
            assert all(other <= first for other in others)
            blocks += max(others) > 0
    assert blocks >= 3
    assert last_positions(whole) == [len(whole.timeline) - 1] + [-1] * BRANCHES


def test_what_is_shown_of_trees_is_the_answer(whole: Session, passage: str) -> None:
    prompt = prompt_of(whole, passage, 90)
    ids = answer(whole, request(prompt, tokens=16)).ids
    second, blocks = Second(ids, whole, len(prompt), wrong_from=3), list[Block]()
    asked = request(prompt, mode="s2-exact", length=12, tokens=16)
    for event in generate(whole, asked, CancelFlag(), second, Watch(on=True)):
        blocks += event.look.blocks if isinstance(event, (Tokens, Done)) and event.look is not None else ()
    told = [word for block in blocks for word in (*block.drafted[: block.accepted], *block.own)]
    assert told == [whole.vocab.shown(token) for token in ids[1:]]
    assert any(len(block.drafted) > block.accepted > 1 for block in blocks)


@pytest.mark.parametrize("stopped_at", [1, 2, 4, 8, 9, 10, 17])
def test_cancel_before_any_pass_of_a_tree(
    whole: Session,
    passage: str,
    wide: Callable[..., Request],
    stopped_at: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of a draft, some in another sequence, and the verify pass."""
    prompt = prompt_of(whole, passage, 90)
    flag, plain_pass, seen = CancelFlag(), Context._pass, 0

    def decode(cells: Context, rows: int, start: int) -> None:
        nonlocal seen
        seen += start >= len(prompt)
        if seen == stopped_at:
            flag.set()
        plain_pass(cells, rows, start)

    monkeypatch.setattr(Context, "_pass", decode)
    cut = answer(whole, wide(prompt, temperature=0.8, tokens=64), cancel=flag)
    monkeypatch.undo()
    assert cut.reason == "cancel"
    assert last_positions(whole) == [cut.cells - 1] + [-1] * BRANCHES
    plain = answer(whole, request(prompt, temperature=0.8, tokens=len(cut.ids)))
    assert (cut.ids, cut.cache) == (plain.ids, plain.cache)


def test_a_branch_that_cannot_be_moved_fails_the_answer_alone(
    whole: Session, passage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(whole, passage, 90)
    plain = answer(whole, request(prompt, tokens=12))
    second = Second(plain.ids, whole, len(prompt))
    monkeypatch.setattr(llama(), "llama_state_seq_set_data", lambda *_: 0)
    with pytest.raises(NativeError, match="cannot be moved"):
        answer(whole, request(prompt, mode="s2-exact", length=8, tokens=12), second)
    monkeypatch.undo()
    assert last_positions(whole) == [len(whole.timeline) - 1] + [-1] * BRANCHES
    check_same(plain, answer(whole, request(prompt, tokens=12)))


@pytest.mark.parametrize("length", [31])
def test_a_tree_at_the_end_of_the_context(
    short: Session, passage: str, length: int, wide: Callable[..., Request]
) -> None:
    """Rows and draft steps take no more cells than there are."""
    prompt = prompt_of(short, passage, short.n_ctx - 24)

    def endless(asked: Request) -> Request:
        return replace(asked, ignore_eos=True, max_tokens=None)

    plain = answer(short, endless(request(prompt, temperature=0.8)))
    drafted = answer(short, endless(wide(prompt, temperature=0.8, length=length)))
    assert plain.reason == "context"
    check_same(plain, drafted)


def test_a_conversation_that_was_put_aside_goes_on(
    short: Session, passage: str, wide: Callable[..., Request]
) -> None:
    """What is kept of it is one sequence, also behind an answer that branched."""
    short.keep_conversations(lambda: 1 << 30)
    mine, theirs = prompt_of(short, passage, 120), prompt_of(short, passage[3000:], 120)
    said = answer(short, wide(mine)).ids
    answer(short, wide(theirs))
    longer = (*mine, *said, *mine[-20:])
    again = answer(short, wide(longer))
    assert again.timings.cache_n >= len(mine)
    short.forget_conversations()
    short.rewind(0)
    answer(short, request(mine, tokens=len(said)))
    check_same(answer(short, request(longer, tokens=24)), again)


@pytest.mark.parametrize("mode", ["s2", "es"])
def test_lossy_drafts_and_those_made_apart_are_chains(
    whole: Session, passage: str, mode: str, wide: Callable[..., Request], passes: list[list[int]]
) -> None:
    drafted = answer(whole, wide(prompt_of(whole, passage, 90), mode=mode))
    assert drafted.timings.draft_n > 0
    assert not passes


def test_a_format_is_drafted_as_a_chain(
    whole: Session, passage: str, wide: Callable[..., Request], passes: list[list[int]]
) -> None:
    asked = replace(wide(prompt_of(whole, passage, 90)), grammar="root ::= [a-z ]+")
    assert answer(whole, asked).timings.draft_n > 0
    assert not passes
