"""What is shown of a request's blocks: it is what happened, and showing it changes nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from toys import plan_for

from engine.chat import Message
from engine.events import Block, Done, ExpertMap, Look, Tokens
from engine.experts import catalogue_of
from engine.loop import generate
from engine.messages import ChatChunk, look_from_json
from engine.native import CancelFlag
from engine.paths import EMBEDDED_MODEL
from engine.request import Request, Sampling, Speculation
from engine.session import Session
from engine.watch import MOST_BLOCKS, Watch

QUOTE = "Repeat this three times, word for word: apple, pear, plum, cherry, quince, medlar, fig, date, lime."


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session.load(EMBEDDED_MODEL, plan_for(EMBEDDED_MODEL, n_ctx=2048, n_threads=1, store=True)) as found:
        yield found


@pytest.fixture
def whole(session: Session) -> Session:
    assert session.store is not None
    session.store.resize(session.store.bytes_all)
    return session


@pytest.fixture
def quarter(session: Session) -> Iterator[Session]:
    """Three of four experts are on disk."""
    assert session.store is not None
    session.store.resize(session.store.bytes_all // 4)
    yield session
    session.store.resize(session.store.bytes_all)


def looks_of(
    session: Session, mode: str, watch: Watch, *, heat: float = 0.0, tokens: int = 48
) -> tuple[list[Tokens], Done, list[Look]]:
    prompt = session.dialogue.tokenize_chat([Message("user", QUOTE)])
    asked = Request(
        prompt,
        Sampling(temperature=heat, seed=7),
        Speculation(mode, draft_length=4, expansion="fixed" if mode == "s2-exact" else "priced"),
        tokens,
        ignore_eos=True,
    )
    events = list(generate(session, asked, CancelFlag(), watch=watch))
    parts = [event for event in events if isinstance(event, Tokens)]
    done = events[-1]
    assert isinstance(done, Done)
    looks = [event.look for event in (*parts, done) if event.look is not None]
    return parts, done, looks


def ids(parts: list[Tokens]) -> list[int]:
    return [token for part in parts for token in part.ids]


def bits(experts: ExpertMap, value: bytes) -> np.ndarray:
    flat = np.unpackbits(np.frombuffer(value, np.uint8))[: experts.layers * experts.each]
    return flat.reshape(experts.layers, experts.each)


@pytest.mark.parametrize("mode", ["ar", "s2-exact", "ngram", "auto"])
@pytest.mark.parametrize("heat", [0.0, 0.8])
def test_watching_changes_no_token(whole: Session, mode: str, heat: float) -> None:
    plain = looks_of(whole, mode, Watch(), heat=heat)
    watched = looks_of(whole, mode, Watch(on=True), heat=heat)
    assert not plain[2]
    assert watched[2]
    assert ids(watched[0]) == ids(plain[0])


def test_the_blocks_are_the_answer(whole: Session) -> None:
    parts, done, looks = looks_of(whole, "s2-exact", Watch(on=True), tokens=MOST_BLOCKS)
    assert not any(look.skipped for look in looks)
    blocks = [block for look in looks for block in look.blocks]
    assert len(blocks) == done.timings.verify_n
    told = [word for block in blocks for word in (*block.drafted[: block.accepted], *block.own)]
    assert told == [whole.vocab.shown(token) for token in ids(parts)[1:]]
    assert sum(len(block.drafted) for block in blocks) == done.timings.draft_n
    assert sum(block.accepted for block in blocks) == done.timings.draft_n_accepted
    assert {block.source for block in blocks} <= {"self", ""}
    assert any(block.accepted for block in blocks)
    assert all(block.ms > 0 for block in blocks)


def test_plain_decode_shows_blocks_without_drafts(whole: Session) -> None:
    _, _, looks = looks_of(whole, "ar", Watch(on=True))
    blocks = [block for look in looks for block in look.blocks]
    assert blocks
    assert {(block.source, block.drafted, len(block.own)) for block in blocks} == {("", (), 1)}


def test_looks_are_few_and_far_between(whole: Session) -> None:
    started = time.monotonic()
    _, _, looks = looks_of(whole, "ar", Watch(on=True), tokens=200)
    assert len(looks) <= 2 + (time.monotonic() - started) / 0.2
    assert sum(look.skipped + len(look.blocks) for look in looks) == 199
    assert max(len(look.blocks) for look in looks) <= MOST_BLOCKS


def test_the_map_has_the_experts_of_the_pass(whole: Session) -> None:
    _, _, looks = looks_of(whole, "ar", Watch(on=True), tokens=4)
    experts = looks[0].experts
    assert experts is not None
    catalogue, n_used = catalogue_of(EMBEDDED_MODEL), whole.info.n_expert_used
    assert (experts.layers, experts.each) == (catalogue.n_layers, catalogue.n_expert)
    assert (bits(experts, experts.used).sum(axis=1) == n_used).all()
    assert experts.there is experts.coming is None
    _, _, looks = looks_of(whole, "s2-exact", Watch(on=True), tokens=8)
    wide = looks[0].experts
    assert wide is not None
    assert n_used < bits(wide, wide.used).sum(axis=1).mean() < catalogue.n_expert


def test_the_map_is_the_routing_of_every_row(whole: Session) -> None:
    whole.rewind(0)
    whole.keep_routing(True)
    rows = whole.vocab.tokenize("a row of a few tokens", add_special=False, parse_special=False)
    whole.decode_full(rows, 0)
    experts = whole.experts_of_pass(len(rows), None)
    routing = whole.hooks.routing()
    whole.keep_routing(False)
    whole.rewind(0)
    assert experts is not None
    used = bits(experts, experts.used)
    for layer, chosen in zip(used, routing, strict=True):
        assert set(np.flatnonzero(layer)) == set(chosen.ranks[:, : chosen.n_used].flat)


def test_the_map_tells_what_is_on_disk(quarter: Session) -> None:
    _, _, looks = looks_of(quarter, "ar", Watch(on=True), tokens=12)
    experts = next(look.experts for look in looks if look.experts is not None)
    assert experts.there is not None
    assert experts.coming is not None
    there, coming = bits(experts, experts.there), bits(experts, experts.coming)
    assert 0 < there.sum() <= there.size * 0.3
    assert not (there & coming).any()


def test_routing_is_kept_no_longer_than_somebody_watches(whole: Session) -> None:
    watch = Watch(on=True)
    looks_of(whole, "ar", watch, tokens=6)
    looks_of(whole, "ar", Watch(), tokens=6)
    assert whole.experts_of_pass(1, None) is None
    watch = Watch()
    parts = generate(
        whole,
        Request(whole.dialogue.tokenize_chat([Message("user", QUOTE)]), max_tokens=1000, ignore_eos=True),
        CancelFlag(),
        watch=watch,
    )
    seen = []
    for event in parts:
        if isinstance(event, Tokens):
            seen.append(event.look is not None)
            watch.on = len(seen) >= 10 and not any(seen)  # looks come by time, not by tokens
            if any(seen[:-40]):
                break
    parts.close()
    first = seen.index(True)
    assert first >= 10
    assert not any(seen[first + 2 :])


def test_looks_that_came_together_are_one() -> None:
    blocks = tuple(Block("self", ("a", "b"), number % 3, ("c",), 1.0) for number in range(10))
    experts = ExpertMap(2, 4, b"\xf1")
    first, second = Look(blocks[:6], 2, experts), Look(blocks[6:], 1)
    both = second.after(first, 5)
    assert both == Look(blocks[5:], 2 + 1 + 5, experts)
    assert second.after(None, 5) is second


def test_a_look_survives_the_wire() -> None:
    look = Look(
        (Block("ngram", (" a\x1b[2J", "é\n"), 1, ("<|im_end|>",), 12.34), Block("", (), 0, ("b",), 3.0)),
        3,
        ExpertMap(3, 5, b"\x80\x01", b"\xff\xfe", b"\x00\x00"),
    )
    assert look_from_json(look.as_json()) == look
    whole = Look(look.blocks, 0, ExpertMap(3, 5, b"\x80\x01"))
    assert ChatChunk.from_json({"s2": {"look": whole.as_json()}}).look == whole
    assert ChatChunk.from_json({"s2": {"mode": "ar"}}).look is None


@pytest.mark.parametrize(
    "damage",
    [{"used": "!!"}, {"used": "AAAA"}, {"layers": 0}, {"each": 400}, {"coming": None}, {"there": 3}],
)
def test_a_map_that_does_not_fit_is_left_out(damage: dict[str, object]) -> None:
    body = Look((), 0, ExpertMap(3, 5, b"\x80\x01", b"\xff\xfe", b"\x00\x00")).as_json()
    body["experts"] |= damage
    if damage.get("coming", "") is None:
        del body["experts"]["coming"]
    assert look_from_json(body) == Look((), 0)
