"""G3 for the modes that choose for themselves: whatever they draft, how far, and from where, the text is
that of plain decode. And they do what they say: drafts from memory read nothing, and look-ups find what was
said before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from decoding import Answer, answer, prompt_of, request
from toys import plan_for

from engine.chat import Message
from engine.experience import Experience
from engine.paths import EMBEDDED_MODEL
from engine.request import EXPANSIONS
from engine.session import Session

QUOTE = (
    "Repeat this list three times, word for word: apple, pear, plum, cherry, quince, medlar, fig, date, lime."
)


@pytest.fixture(scope="module", params=[None, 0.25], ids=["whole", "25 %"])
def held(request: pytest.FixtureRequest) -> Iterator[Session]:
    """The embedded model with all its experts in memory, or only a share of them."""
    session = Session.load(EMBEDDED_MODEL, plan_for(EMBEDDED_MODEL, n_ctx=2048, n_threads=2, store=True))
    assert session.store is not None
    if request.param is not None:
        session.store.resize(int(session.store.bytes_all * request.param))
    yield session
    session.close()


@pytest.fixture(scope="module")
def plain(held: Session, passage: str) -> dict[float, Answer]:
    prompt = prompt_of(held, passage, 600)
    return {heat: answer(held, request(prompt, temperature=heat, tokens=32)) for heat in (0.0, 0.8)}


def check_same(expected: Answer, drafted: Answer) -> None:
    assert drafted.ids == expected.ids
    assert (drafted.text, drafted.reason, drafted.cells) == (expected.text, expected.reason, expected.cells)
    assert drafted.cache == expected.cache, "equal tokens, but another KV cache"


@pytest.mark.parametrize("heat", [0.0, 0.8])
@pytest.mark.parametrize("mode", ["auto", "ngram", "s2-exact", "es", "cascade"])
def test_modes_that_choose_give_the_same_text(
    held: Session, passage: str, plain: dict[float, Answer], mode: str, heat: float
) -> None:
    prompt = prompt_of(held, passage, 600)
    for _ in range(2):  # the second time they know what things cost
        asked = request(prompt, mode=mode, length=8, temperature=heat, tokens=32, expansion="")
        check_same(plain[heat], answer(held, asked))


@pytest.mark.parametrize("expansion", [name for name in EXPANSIONS if name != "priced"])
def test_however_far_drafts_go_the_text_is_the_same(
    held: Session, passage: str, plain: dict[float, Answer], expansion: str
) -> None:
    prompt = prompt_of(held, passage, 600)
    asked = request(prompt, mode="s2-exact", length=12, temperature=0.8, tokens=32, expansion=expansion)
    check_same(plain[0.8], answer(held, asked))


def test_look_ups_find_what_was_said_before(held: Session) -> None:
    """A model that quotes is drafted by what it quotes, and drafts cost it nothing of its text."""
    said = Message("assistant", QUOTE[45:])
    prompt = held.dialogue.tokenize_chat(
        [Message("user", QUOTE), said, Message("user", QUOTE), said, Message("user", QUOTE)]
    )
    expected = answer(held, request(prompt, tokens=60))
    held.rewind(0)
    held.experience = Experience()  # before anything was measured a look-up costs nothing to try
    found = answer(held, request(prompt, mode="ngram", tokens=60))
    check_same(expected, found)
    assert found.timings.draft_n > 0
    assert found.timings.draft_n_accepted > 0


def test_drafts_from_memory_read_nothing_for_themselves(held: Session, passage: str) -> None:
    store = held.store
    assert store is not None
    answer(held, request(prompt_of(held, passage, 600), tokens=4))
    start, before = len(held.timeline), store.stats()
    with held.drafting(2, from_memory=True):
        for at, token in enumerate(held.timeline.tokens[100:108]):
            held.decode((token,), start + at, all_logits=True)
            chosen = held.chosen_experts()
            assert chosen is not None
            assert chosen.shape == (store.n_layers, held.info.n_expert_used)
        held.rewind(start)
    after = store.stats()
    read, ahead = after.bytes_read - before.bytes_read, after.bytes_prefetched - before.bytes_prefetched
    assert read - ahead <= 0.05 * read, "an expert may go between the look and the product, seldom"
    assert after.asked == before.asked, "drafts are not counted"
    if not store.is_whole:
        assert after.prefetched > before.prefetched, "what the target would choose is read ahead"


def test_the_text_is_the_same_however_experts_are_read(
    held: Session, passage: str, plain: dict[float, Answer]
) -> None:
    """Without prefetch nothing is read before it is asked for; the text stays, also where drafts may read.

    What drafts announce is read ahead in any case. Whether guesses of the next layer's router are depends on
    what reading costs here.
    """
    store, prompt = held.store, prompt_of(held, passage, 600)
    assert store is not None
    for prefetch, resident_only in ((False, True), (False, False), (True, False), (True, True)):
        asked = request(prompt, mode="s2-exact", length=4, temperature=0.8, tokens=32)
        reads = replace(asked.speculation, prefetch=prefetch, resident_only=resident_only)
        before = store.stats()
        check_same(plain[0.8], answer(held, replace(asked, speculation=reads)))
        after = store.stats()
        if not prefetch:
            assert after.prefetched == before.prefetched
        elif resident_only and not store.is_whole:
            assert after.prefetched > before.prefetched


def test_a_draft_leaves_no_trace_in_what_the_store_learns(held: Session, passage: str) -> None:
    store = held.store
    assert store is not None
    answer(held, request(prompt_of(held, passage, 600), tokens=4))
    before, start = store.heat(), len(held.timeline)
    with held.drafting(2, from_memory=False):
        held.decode((7,), start, all_logits=True)
        held.rewind(start)
    assert (store.heat() == before).all()


def test_prices_are_learned_and_the_gain_is_told(held: Session, passage: str) -> None:
    prompt = prompt_of(held, passage, 600)
    held.rewind(0)
    answer(held, request(prompt, tokens=12))  # drafts alone may leave no pass of one row to measure
    timings = answer(held, request(prompt, mode="s2-exact", length=4, tokens=64)).timings
    assert held.experience.prices.known
    assert held.experience.prices.plain_ms > 0
    assert timings.gain is not None
    assert 0.05 < timings.gain < 20
