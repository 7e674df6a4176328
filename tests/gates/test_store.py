"""G4, G6, G9: what is in memory, and when it came, never changes a character."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from decoding import Answer, answer, prompt_of, request
from families import FAMILIES, write_family
from toys import link_embedded, plan_for

from engine.errors import ModelError, S2Error
from engine.experts import catalogue_of
from engine.model import files_of, read_model_info
from engine.native import CancelFlag
from engine.packing import Packing
from engine.paths import EMBEDDED_MODEL
from engine.session import Session
from engine.store import METHODS, Store, StoreStats

CELLS, TOKENS = 600, 32
FULL = (0.05, 0.1, 0.15, 0.4, 0.8, 0.95)  # shares of the experts that CI leaves out


@pytest.fixture(scope="module")
def stored() -> Iterator[Session]:
    """The embedded model with its experts in a store, every one in memory at first."""
    session = Session.load(EMBEDDED_MODEL, plan_for(EMBEDDED_MODEL, n_ctx=2048, n_threads=2, store=True))
    yield session
    session.close()


@pytest.fixture
def session(stored: Session) -> Iterator[Session]:
    store = store_of(stored)
    stored.rewind(0)
    store.resize(store.bytes_all)
    yield stored
    store.torment(0)
    store.take_fault()
    store.resize(store.bytes_all)


def store_of(session: Session) -> Store:
    assert session.store is not None
    return session.store


def fill(session: Session) -> None:
    """Waits until every expert is in memory."""
    store = store_of(session)
    store.resize(store.bytes_all)
    store.warm()
    for _ in range(3000):
        if store.stats().n_resident == store.stats().n_experts:
            return
        threading.Event().wait(0.01)
    raise AssertionError("the store did not fill")


def ask(session: Session, passage: str, mode: str = "ar", temperature: float = 0.8) -> Answer:
    """One answer from an empty cache."""
    session.rewind(0)
    prompt = prompt_of(session, passage, CELLS)
    return answer(session, request(prompt, mode=mode, temperature=temperature, tokens=TOKENS))


def check_same(one: Answer, other: Answer) -> None:
    assert other.ids == one.ids
    assert (other.text, other.reason, other.cells) == (one.text, one.reason, one.cells)
    assert other.cache == one.cache, "equal tokens, but another KV cache"


def grown(store: Store, before: StoreStats) -> StoreStats:
    """What the counters gained since `before`."""
    after = store.stats()
    names = (
        "passes",
        "asked",
        "hits",
        "late",
        "reads",
        "bytes_read",
        "prefetched",
        "prefetch_used",
        "evicted",
    )
    return replace(after, **{name: getattr(after, name) - getattr(before, name) for name in names})


@pytest.fixture(scope="module")
def whole(stored: Session, passage: str) -> dict[str, Answer]:
    """The answers with every expert in memory, by mode."""
    fill(stored)
    before = store_of(stored).stats()
    answers = {mode: ask(stored, passage, mode) for mode in ("ar", "s2-exact")}
    assert grown(store_of(stored), before).reads == 0
    check_same(answers["ar"], answers["s2-exact"])
    return answers


def share(store: Store, part: float | str) -> int:
    """Bytes of slots: of all experts' bytes, or what one token needs of a layer, or the least that works."""
    if part == "least":
        return store.bytes_min
    if part == "one layer":
        return read_model_info(EMBEDDED_MODEL).n_expert_used * store.bytes_all // store.stats().n_experts
    assert isinstance(part, float)
    return int(part * store.bytes_all)


@pytest.mark.parametrize("mode", ["ar", "s2-exact"])
@pytest.mark.parametrize(
    "part", ["least", "one layer", 0.25, 0.6, *(pytest.param(x, marks=pytest.mark.full) for x in FULL)]
)
def test_every_budget_gives_the_same_text(
    session: Session, passage: str, whole: dict[str, Answer], part: float | str, mode: str
) -> None:
    store = store_of(session)
    store.resize(share(store, part))
    before = store.stats()
    assert before.bytes <= max(share(store, part), store.bytes_min)
    found = ask(session, passage, mode)
    check_same(whole[mode], found)
    gained = grown(store, before)
    assert gained.asked > gained.hits > 0 or part in ("least", "one layer")
    assert gained.reads > 0
    assert gained.bytes_read > 0
    assert gained.evicted > 0 or part == "least"
    assert store.stats().n_resident <= before.n_slots


@pytest.mark.parametrize("seed", [0, *(pytest.param(x, marks=pytest.mark.full) for x in range(1, 6))])
@pytest.mark.parametrize("part", ["least", 0.25, 1.0])
def test_delays_and_evictions_change_nothing(
    session: Session, passage: str, whole: dict[str, Answer], part: float | str, seed: int
) -> None:
    store = store_of(session)
    fill(session)
    store.resize(share(store, part))
    store.torment(seed + 1, max_us=400, evictions=3)
    before = store.stats()
    check_same(whole["ar"], ask(session, passage, "ar" if seed % 2 else "s2-exact"))
    assert grown(store, before).reads > 0


def test_resizing_in_the_middle_changes_nothing(
    session: Session, passage: str, whole: dict[str, Answer]
) -> None:
    """Another thread gives slots back and takes them again while passes run."""
    store, stop = store_of(session), threading.Event()

    def swing() -> None:
        rng = np.random.default_rng(5)
        while not stop.wait(0.003):
            store.resize(share(store, float(rng.uniform(0.02, 1.1))))

    before = store.stats()
    thread = threading.Thread(target=swing)
    thread.start()
    try:
        for mode in ("ar", "s2-exact"):
            check_same(whole[mode], ask(session, passage, mode))
    finally:
        stop.set()
        thread.join()
    assert grown(store, before).evicted > 0


@pytest.mark.parametrize("fail_each", [1, 50, 1001])
def test_a_failed_read_fails_the_request_and_no_more(
    session: Session, passage: str, whole: dict[str, Answer], fail_each: int
) -> None:
    store = store_of(session)
    store.resize(share(store, 0.2))
    store.torment(7, fail_each=fail_each)
    names = "|".join(re.escape(file.name) for file in files_of(EMBEDDED_MODEL))
    with pytest.raises(ModelError, match=rf"({names}).*Input/output error"):
        ask(session, passage)
    assert session.timeline.tokens == [] or len(session.timeline) <= CELLS + TOKENS
    store.torment(0)
    assert store.take_fault() is None
    check_same(whole["ar"], ask(session, passage))


def test_a_cancel_leaves_nothing_behind(session: Session, passage: str, whole: dict[str, Answer]) -> None:
    """A pass that is stopped may have reads in flight; the next ones find the store in order."""
    store = store_of(session)
    store.resize(share(store, 0.1))
    store.torment(3, max_us=3000)
    for wait in (0.05, 0.3, 0.6, 1.0):
        flag = CancelFlag()
        timer = threading.Timer(wait, flag.set)
        timer.start()
        session.rewind(0)
        found = answer(
            session, request(prompt_of(session, passage, CELLS), temperature=0.8, tokens=TOKENS), cancel=flag
        )
        timer.cancel()
        assert found.reason in ("cancel", "max_tokens", "eos")
    store.torment(0)
    check_same(whole["ar"], ask(session, passage))


def test_it_really_looks_ahead(session: Session, passage: str) -> None:
    """G6: in plain decode the next layer's router asks for experts ahead, often rightly."""
    store = store_of(session)
    store.resize(share(store, 0.5))
    store.torment(1, max_us=600)  # else reading ahead may not be worth it: the file is in memory
    before = store.stats()
    ask(session, passage)
    gained = grown(store, before)
    assert gained.prefetched > 100
    assert 0.2 < gained.prefetch_used / gained.prefetched <= 1


def test_heat_is_kept(stored: Session, passage: str) -> None:
    store = store_of(stored)
    store.resize(share(store, 0.25))
    ask(stored, passage)
    heat = store.heat()
    assert heat.shape == (store.catalogue.n_layers, store.catalogue.n_expert)
    assert heat.max() > 0
    other = Store.open(store.catalogue)
    try:
        assert not other.heat().any()
        other.set_heat(heat)
        assert np.allclose(other.heat(), heat, rtol=1e-3)
        other.resize(int(0.25 * other.bytes_all))
        other.warm()
        for _ in range(500):
            if other.stats().n_resident == other.stats().n_slots:
                break
            threading.Event().wait(0.01)
        assert other.stats().n_resident == other.stats().n_slots
    finally:
        other.close()


# --- other files, other ways to read


@pytest.mark.parametrize("method", [name for name in METHODS if name != "auto"])
def test_every_way_to_read_gives_the_same_text(passage: str, whole: dict[str, Answer], method: str) -> None:
    opened: list[Store] = []

    class Chosen(Store):
        @classmethod
        def open(cls, catalogue, n_bytes=0, **_):  # type: ignore[no-untyped-def]
            opened.append(Store.open(catalogue, n_bytes, method=method))
            return opened[0]

    plan = plan_for(EMBEDDED_MODEL, n_ctx=2048, n_threads=2, store=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.session.Store", Chosen)
        try:
            loaded = Session.load(EMBEDDED_MODEL, plan)
        except S2Error as error:
            pytest.skip(f"this machine cannot: {error}")
    with loaded as session:
        if opened[0].method != method:
            pytest.skip(f"this machine cannot: {opened[0].reason}")
        opened[0].resize(share(opened[0], 0.2))
        check_same(whole["ar"], ask(session, passage))


def test_a_pack_gives_the_same_text(tmp_path: Path, passage: str, whole: dict[str, Answer]) -> None:
    model = link_embedded(tmp_path)
    pack = Packing(model).write(lambda *_: None)
    plan = plan_for(model, n_ctx=2048, n_threads=2, store=True)
    with Session.load(model, plan) as session:
        store = store_of(session)
        assert store.catalogue.files != catalogue_of(model).files, f"{pack} was not used"
        store.resize(share(store, 0.2))
        check_same(whole["ar"], ask(session, passage))
    assert whole["ar"].text


# --- families


def letters(count: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(count).integers(263, 355, count).tolist())


def family_answer(session: Session, mode: str, cells: int = 300) -> Answer:
    session.rewind(0)
    asked = replace(request(letters(cells), mode=mode, temperature=0.8, tokens=24), ignore_eos=True)
    return answer(session, asked)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_from_a_store(name: str, tmp_path: Path) -> None:
    path = write_family(tmp_path / f"{name}.gguf", FAMILIES[name])
    with Session.load(path, plan_for(path, n_ctx=1024, n_threads=2, store=True)) as session:
        store = store_of(session)
        fill(session)
        everything = [family_answer(session, mode) for mode in ("ar", "s2-exact")]
        check_same(*everything)
        for part in ("least", 0.3, 0.7):
            store.resize(share(store, part))
            before = store.stats()
            for mode, expected in zip(("ar", "s2-exact"), everything, strict=True):
                check_same(expected, family_answer(session, mode))
            assert grown(store, before).reads > 0


@pytest.mark.parametrize("per_file", [1, 5])
def test_a_split_set_gives_the_same_text(per_file: int, tmp_path: Path) -> None:
    """The experts of a layer lie in several files, each with tensors of other sizes at other places."""
    found = []
    for name, count in (("one", 0), ("many", per_file)):
        path = write_family(tmp_path / f"{name}.gguf", FAMILIES["qwen3moe-mixed"], count)
        with Session.load(path, plan_for(path, n_ctx=1024, n_threads=1, store=True)) as session:
            store = store_of(session)
            if count:
                homes = {(t.layer, t.file) for t in store.catalogue.tensors}
                assert len(homes) > store.n_layers
                store.resize(share(store, 0.3))
            found.append(family_answer(session, "s2-exact"))
            assert not count or store.stats().evicted > 0
    check_same(*found)


@pytest.mark.parametrize("cells", [1, 2, 9, 10, 32, 33, 600])
def test_prompts_of_any_length_where_layers_have_slots_of_their_own_size(cells: int, tmp_path: Path) -> None:
    """Few rows and many go other ways through the store; none may give slots up for another size."""
    path = write_family(tmp_path / "mixed.gguf", FAMILIES["qwen3moe-mixed"])
    with Session.load(path, plan_for(path, n_ctx=1024, n_threads=1, store=True)) as session:
        store = store_of(session)
        assert len({t.expert_bytes for t in store.catalogue.tensors}) > 3
        fill(session)
        expected = {mode: family_answer(session, mode, cells) for mode in ("ar", "s2-exact")}
        check_same(expected["ar"], expected["s2-exact"])
        for part in ("least", 0.5):
            size = store.resize(share(store, part))
            for mode in ("ar", "s2-exact", "ar"):
                check_same(expected[mode], family_answer(session, mode, cells))
                assert store.stats().bytes == size


@pytest.mark.parametrize("name", FAMILIES)
def test_a_store_holds_the_right_weights(name: str, tmp_path: Path) -> None:
    """The kernels may round otherwise than those without a store, and no more."""
    path = write_family(tmp_path / f"{name}.gguf", FAMILIES[name])
    found = []
    for store in (False, True):
        with Session.load(path, plan_for(path, n_ctx=256, n_threads=1, store=store)) as session:
            found.append(logits_of(session, letters(32)))
    scale = np.abs(found[0]).max()
    assert scale > 0.1
    assert np.abs(found[1] - found[0]).max() < 0.05 * scale


def logits_of(session: Session, rows: Sequence[int]) -> np.ndarray:
    from engine.native import llama

    session.decode(rows, 0, all_logits=True)
    shape = (len(session.vocab),)
    context = session.context
    return np.stack(
        [
            np.ctypeslib.as_array(llama().llama_get_logits_ith(context, row), shape).copy()
            for row in range(len(rows))
        ]
    )
