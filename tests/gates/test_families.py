"""The gates on every family of MoE models, and on models that keep a state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from decoding import Answer, answer, request
from families import EXPERTS, FAMILIES, SIGMOID, STATEFUL, USED, WINDOWED, Family, weights, write_family
from toys import plan_for

from engine.expansion import EXPANSIONS, Fixed
from engine.native import CancelFlag, LayerRouting, llama
from engine.need import need_of
from engine.request import CACHE_TYPES, Request
from engine.session import Session

#: (cells before the answer, temperature, draft experts, draft length)
SAMPLE = [
    (100, 0.0, 2, 4),
    (100, 0.8, 1, 8),
    (300, 0.8, 3, 5),
    (600, 0.0, 2, 31),
    (600, 0.8, 2, 4),
    (1100, 0.8, 1, 3),
]


class Wide(Fixed):
    """Decodes and admits whatever is likeliest, with siblings."""

    width = 3


class Models:
    """Sessions on the families' models, written and loaded once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sessions: dict[str, Session] = {}

    def get(self, name: str) -> Session:
        if name not in self._sessions:
            path = write_family(self._folder / f"{name}.gguf", (FAMILIES | STATEFUL)[name])
            plan = plan_for(path, n_ctx=2048, n_threads=1, mode="s2-exact")
            self._sessions[name] = Session.load(path, plan)
        session = self._sessions[name]
        session.rewind(0)
        return session

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    models = Models(tmp_path_factory.mktemp("families"))
    yield models
    models.close()


@pytest.fixture(params=FAMILIES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(models: Models, name: str) -> Iterator[Session]:
    session = models.get(name)
    yield session
    session.hooks.set_experts(0)
    session.hooks.set_routing(False)


def letters(count: int) -> tuple[int, ...]:
    """A prompt of single letters in no order."""
    return tuple(np.random.default_rng(count).integers(263, 355, count).tolist())


def asked(cells: int, **settings: float | str) -> Request:
    """A request that ends by its length only: random models know no end."""
    return replace(request(letters(cells), **{"tokens": 32, **settings}), ignore_eos=True)  # type: ignore[arg-type]


def logits_of(session: Session, rows: Sequence[int], experts: int) -> npt.NDArray[np.float32]:
    """The logits of each row, decoded with `experts` per token."""
    session.hooks.set_experts(experts)
    session.decode(rows, 0, all_logits=True)
    found = [
        np.ctypeslib.as_array(
            llama().llama_get_logits_ith(session.context, row), (len(session.vocab),)
        ).copy()
        for row in range(len(rows))
    ]
    session.hooks.set_experts(0)
    session.rewind(0)
    return np.stack(found)


# --- draft experts


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_all_experts_draft_what_the_target_draws(model: Session, temperature: float) -> None:
    timings = answer(model, asked(300, mode="s2-exact", k=USED, length=7, temperature=temperature)).timings
    assert timings.draft_n_accepted == timings.draft_n > 0


def test_fewer_experts_change_the_logits(model: Session) -> None:
    rows = letters(3)
    full = logits_of(model, rows, 0)
    assert np.array_equal(logits_of(model, rows, USED), full)
    for experts in range(1, USED):
        changed = np.abs(logits_of(model, rows, experts) - full).max(axis=1)
        assert np.all((changed > 1e-3) & (changed < 100)), experts


# --- the routed branch's scale in drafts

LEFT_AS_THEY_ARE = [name for name, family in FAMILIES.items() if not family.normalises]


@pytest.mark.parametrize("name", LEFT_AS_THEY_ARE)
def test_few_experts_weigh_as_much_as_all(name: str, tmp_path: Path) -> None:
    """With experts that are copies of one, their weights' sum is all that a draft can get wrong."""
    path = write_family(tmp_path / "alike.gguf", replace(FAMILIES[name], alike=True))
    with Session.load(path, plan_for(path, n_ctx=256)) as session:
        rows = letters(3)
        full = logits_of(session, rows, 0)
        for experts in range(1, USED):
            shrunk = logits_of(session, rows, experts)
            session.hooks.set_scale_restored(1)
            restored = logits_of(session, rows, experts)
            session.hooks.set_scale_restored(0)
            # What is left is rounding: of the sum over the experts, and of the activations behind it.
            assert np.abs(restored - full).max() < 0.05 < 0.1 < np.abs(shrunk - full).max(), experts


def test_the_scale_is_restored_in_drafts_only(model: Session, name: str) -> None:
    rows = letters(3)

    def logits(experts: int, share: float) -> npt.NDArray[np.float32]:
        model.hooks.set_scale_restored(share)
        found = logits_of(model, rows, experts)
        model.hooks.set_scale_restored(0)
        return found

    for experts in (0, USED):
        assert np.array_equal(logits(experts, 1), logits(experts, 0))
    same = np.array_equal(logits(2, 1), logits(2, 0))
    assert same == FAMILIES[name].normalises


# --- routing


def chosen(family: Family, path: Path, layer: LayerRouting, count: int) -> npt.NDArray[np.int64]:
    """The `count` best experts of each row by the family's own rule, best first."""
    scores = layer.logits.astype(np.float64)
    if family.keys.get("expert_gating_func") == SIGMOID:
        scores = 1 / (1 + np.exp(-scores))
    if "exp_probs_b.bias" in family.feed:
        scores = scores + weights(path, f"blk.{layer.layer}.exp_probs_b.bias")
    groups = family.keys.get("expert_group_count")
    if isinstance(groups, int):
        split = scores.reshape(len(scores), groups, -1)
        worth = np.sort(split, axis=2)[:, :, -2:].sum(axis=2)
        worst = np.argsort(-worth, axis=1)[:, family.keys["expert_group_used_count"] :]  # type: ignore[misc]
        np.put_along_axis(split, worst[:, :, None], -np.inf, axis=1)
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


@pytest.mark.parametrize(("rows", "experts"), [(5, 0), (1, 2), (32, 0)])
def test_routing_is_the_familys_own(model: Session, name: str, rows: int, experts: int) -> None:
    family, used = FAMILIES[name], experts or USED
    model.hooks.set_routing(True)
    model.hooks.set_experts(experts)
    model.decode(letters(rows), 0, all_logits=True)
    layers = model.hooks.routing()
    assert [layer.layer for layer in layers] == family.moe_layers
    for layer in layers:
        assert layer.n_used == used
        assert layer.logits.shape == layer.ranks.shape == (rows, EXPERTS)
        assert np.array_equal(np.sort(layer.ranks, axis=1)[0], np.arange(EXPERTS))
        assert np.array_equal(layer.ranks[:, :used], chosen(family, model.info.path, layer, used))


def test_groups_and_bias_decide_in_the_toy(models: Models) -> None:
    """Or the gate above would pass on a plain sort of the logits."""
    session = models.get("deepseek3")
    session.hooks.set_routing(True)
    session.decode(letters(32), 0, all_logits=True)
    layer = session.hooks.routing()[0]
    session.hooks.set_routing(False)
    family = FAMILIES["deepseek3"]
    for less in (
        replace(family, feed={}),
        replace(family, keys={"expert_gating_func": SIGMOID}),
    ):
        assert not np.array_equal(layer.ranks[:, :USED], chosen(less, session.info.path, layer, USED))


# --- exactness


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_text_and_cache_equal_plain_decode(model: Session, case: tuple[int, float, int, int]) -> None:
    """At a temperature more seeds are drawn until a draft was refused: a random model's few experts may well
    draw what all of them draw for the length of an answer."""
    cells, temperature, k, length = case
    drafts = {"mode": "s2-exact", "k": k, "length": length}
    for seed in range(11, 31 if temperature else 12):
        settings = {"temperature": temperature, "seed": seed}
        model.rewind(0)
        plain = answer(model, asked(cells, **settings))
        model.rewind(0)
        drafted = answer(model, asked(cells, **settings, **drafts))  # type: ignore[arg-type]
        check_same(plain, drafted)
        assert 0 < drafted.timings.draft_n_accepted <= drafted.timings.draft_n
        if drafted.timings.draft_n_accepted < drafted.timings.draft_n:
            return
    assert not temperature, "every draft of every seed was accepted"


@pytest.mark.parametrize(("cells", "temperature"), [(250, 0.0), (600, 0.8)])
def test_trees_are_exact(
    model: Session, cells: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are none, drafts are chains."""
    monkeypatch.setitem(EXPANSIONS, "tree", Wide)
    plain = answer(model, asked(cells, temperature=temperature))
    model.rewind(0)
    tree = answer(model, asked(cells, mode="s2-exact", length=12, expansion="tree", temperature=temperature))
    assert 0 < tree.timings.draft_n_accepted < tree.timings.draft_n
    check_same(plain, tree)


def test_sequences_take_no_memory(models: Models, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the buffers of passes nor what the cache keeps of a token."""
    path = models.get(name).info.path

    def taken() -> tuple[int, bytes]:
        with Session.load(path, plan_for(path, n_ctx=2048, n_threads=1)) as session:
            return session.hooks.compute_bytes(), answer(session, asked(100, tokens=1)).cache

    several = taken()
    monkeypatch.setattr("engine.context.can_branch", lambda *_: False)
    assert taken() == several


def test_threads_change_nothing(model: Session) -> None:
    """Stock attention splits the cache between two threads for one row, and not for several."""
    llama().llama_set_n_threads(model.context, 2, 2)
    try:
        plain = answer(model, asked(600, temperature=0.8, tokens=16))
    finally:
        llama().llama_set_n_threads(model.context, 1, 1)
    model.rewind(0)
    check_same(plain, answer(model, asked(600, mode="s2-exact", temperature=0.8, tokens=16)))


def check_same(plain: Answer, drafted: Answer) -> None:
    assert (drafted.ids, drafted.cells) == (plain.ids, plain.cells)
    assert drafted.cache == plain.cache, "equal tokens, but another KV cache"


# --- the KV cache

WITH_WINDOW = [name for name, family in FAMILIES.items() if WINDOWED.keys() <= family.keys.keys()]


@pytest.mark.parametrize("name", WITH_WINDOW)
def test_a_window_left_behind_can_be_gone_back_to(model: Session) -> None:
    """Sliding windows are kept whole: the cells in front of where an earlier prompt ends are still there."""
    longer = asked(1900, tokens=2)
    shorter = replace(longer, prompt=longer.prompt[:700], max_tokens=8)
    answer(model, longer)
    again = answer(model, shorter)
    assert again.timings.cache_n == 512
    model.rewind(0)
    check_same(answer(model, shorter), again)


CELL_NOTES = 32  # bytes at most that a saved cell takes for its position and sequences


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in WITH_WINDOW])
@pytest.mark.parametrize("cache_type", CACHE_TYPES)
def test_the_header_tells_the_caches_bytes(models: Models, name: str, cache_type: str) -> None:
    """What is saved of a sliding window leaves out what is out of it, so those models are left out here."""
    path = models.get(name).info.path
    with Session.load(path, plan_for(path, n_ctx=512, n_threads=1, cache_type=cache_type)) as session:
        sizes = [len(answer(session, asked(cells, tokens=1)).cache) for cells in (200, 300)]
        expected = session.info.kv_bytes_per_token * CACHE_TYPES[cache_type] / CACHE_TYPES["f16"]
        assert 0 <= (sizes[1] - sizes[0]) / 100 - expected <= CELL_NOTES


def test_the_header_tells_the_buffers_of_a_pass(model: Session) -> None:
    """What llama.cpp sets aside, and what reading logits and quantised rows take."""
    plan = model.plan
    need = need_of(
        model.info, n_ctx=plan.n_ctx, cell_bytes=0, n_ubatch=plan.n_ubatch, n_outputs=plan.n_outputs
    )
    assert model.hooks.compute_bytes() <= need.compute < 1.25 * model.hooks.compute_bytes()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_q8_0_cache_is_exact_too(name: str, models: Models, temperature: float) -> None:
    path = models.get(name).info.path
    with Session.load(path, plan_for(path, n_ctx=1024, n_threads=1, cache_type="q8_0")) as session:
        plain = answer(session, asked(600, temperature=temperature, tokens=24))
        session.rewind(0)
        drafted = answer(session, asked(600, mode="s2-exact", temperature=temperature, tokens=24))
        assert drafted.timings.draft_n > 0
        check_same(plain, drafted)


# --- models that keep a state


@pytest.fixture(params=STATEFUL)
def stateful(models: Models, request: pytest.FixtureRequest) -> Session:
    return models.get(str(request.param))


def test_a_model_with_a_state_says_that_it_runs_in_ar(stateful: Session) -> None:
    assert any("cannot be rolled back: it runs in ar" in notice for notice in stateful.notices)
    assert stateful.plan.speculation.mode == "ar"
    plain = answer(stateful, asked(300))
    drafted = answer(stateful, asked(300, mode="s2-exact"))
    assert drafted.timings.draft_n == 0
    check_same(plain, drafted)


def test_a_state_that_was_cut_is_built_anew(stateful: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped pass may have changed the state: what follows is as in an engine just started."""
    first = asked(300, tokens=20)
    flag, plain_decode, passes = CancelFlag(), stateful.decode, 0

    def decode(tokens: Sequence[int], start: int, *, all_logits: bool) -> None:
        nonlocal passes
        passes += 1
        if passes == 6:
            flag.set()
        plain_decode(tokens, start, all_logits=all_logits)

    monkeypatch.setattr(stateful, "decode", decode)
    cut = answer(stateful, first, cancel=flag)
    monkeypatch.undo()
    assert cut.reason == "cancel"
    next_turn = replace(first, prompt=(*first.prompt, *cut.ids, *letters(30)))
    went_on = answer(stateful, next_turn)
    assert went_on.timings.cache_n == 0
    stateful.rewind(0)
    check_same(answer(stateful, next_turn), went_on)


def test_a_state_goes_on_with_the_next_turn(stateful: Session) -> None:
    first = asked(300, tokens=20)
    once = answer(stateful, first)
    longer = replace(first, prompt=(*first.prompt, *once.ids, *letters(30)))
    assert answer(stateful, longer).timings.cache_n == once.cells > 300
