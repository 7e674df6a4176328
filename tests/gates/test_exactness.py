"""G2, G3, G6, G10: speculation never changes a token, and it really speculates."""

from __future__ import annotations

import itertools
import random
from contextlib import closing
from dataclasses import replace

import pytest
from decoding import Answer, Loader, Script, answer, cache_bytes, prompt_of, request

from engine.draft import Draft
from engine.events import Tokens
from engine.experience import Experience
from engine.loop import generate
from engine.model import read_model_info
from engine.native import CancelFlag, llama
from engine.paths import EMBEDDED_MODEL
from engine.request import CACHE_TYPES, Request, Speculation
from engine.sampler import Sampler
from engine.self_draft import SelfDraft
from engine.session import Session
from engine.timeline import ROWS_EXACT

USED = read_model_info(EMBEDDED_MODEL).n_expert_used
#: (threads, cells before the answer, temperature, draft experts, draft length); one-row attention takes
#: another path in stock ggml from 257 cells on, so the sample stands on both sides.
SAMPLE = [
    (2, 100, 0.0, 2, 4),
    (2, 100, 0.8, 1, 8),
    (1, 250, 0.0, 4, 3),
    (2, 600, 0.0, 2, 4),
    (2, 600, 0.8, 2, 4),
    (2, 600, 0.0, 1, 16),
    (1, 600, 0.8, 3, 5),
    (2, 600, 0.0, USED, 31),
    (2, 2100, 0.0, 2, 4),
    (2, 2100, 0.8, 4, 2),
]
SAMPLE_Q8_0 = [  # attention unpacks a q8_0 cache and adds up in F32, on paths of its own
    (2, 100, 0.0, 2, 4),
    (1, 100, 0.8, 1, 8),
    (1, 600, 0.0, 4, 3),
    (2, 600, 0.8, 2, 31),
    (2, 1100, 0.0, 2, 4),
    pytest.param((2, 2100, 0.0, 2, 4), marks=pytest.mark.full),
    pytest.param((1, 2100, 0.8, 3, 5), marks=pytest.mark.full),
]
#: The whole matrix: in each of SETTINGS (threads, cells, temperature, type of the cache) a block with each of
#: DRAFTS (experts, length). Plain decode depends on the setting alone.
SETTINGS = list(itertools.product((1, 2, 4), (100, 600, 2100, 6000), (0.0, 0.8), CACHE_TYPES))
DRAFTS = list(itertools.product(range(1, USED + 1), (1, 2, 4, 8, 16, 31)))


def check_equal(
    loader: Loader,
    passage: str,
    case: tuple[int, int, float, int, int],
    tokens: int,
    cache_type: str = "f16",
    store: bool | None = None,
) -> None:
    threads, cells, temperature, k, length = case
    session = loader.get(threads=threads, cache_type=cache_type, store=store)
    prompt = prompt_of(session, passage, cells)
    plain = answer(session, request(prompt, temperature=temperature, tokens=tokens))
    drafted = answer(
        session, request(prompt, mode="s2-exact", k=k, length=length, temperature=temperature, tokens=tokens)
    )
    assert plain.timings.draft_n == 0
    assert drafted.timings.draft_n > 0
    check_same(plain, drafted)


def check_same(plain: Answer, drafted: Answer) -> None:
    assert drafted.ids == plain.ids
    assert (drafted.text, drafted.reason) == (plain.text, plain.reason)
    assert drafted.cells == plain.cells
    assert drafted.cache == plain.cache, "equal tokens, but another KV cache"


@pytest.mark.parametrize("case", SAMPLE, ids=str)
def test_text_and_cache_equal_plain_decode(
    loader: Loader, passage: str, case: tuple[int, int, float, int, int]
) -> None:
    check_equal(loader, passage, case, tokens=64)


@pytest.mark.parametrize("case", [SAMPLE[i] for i in (1, 4, 7)], ids=str)
def test_text_and_cache_equal_plain_decode_without_a_store(
    loader: Loader, passage: str, case: tuple[int, int, float, int, int]
) -> None:
    """As on a GPU's machine: experts in the layouts that ggml repacks, other kernels of ours read them."""
    check_equal(loader, passage, case, tokens=48, store=False)


@pytest.mark.parametrize("case", SAMPLE_Q8_0, ids=str)
def test_text_and_cache_equal_plain_decode_in_q8_0(
    loader: Loader, passage: str, case: tuple[int, int, float, int, int]
) -> None:
    check_equal(loader, passage, case, tokens=48, cache_type="q8_0")


def test_threads_change_nothing_in_q8_0(loader: Loader, passage: str) -> None:
    one, two = (loader.get(threads=threads, cache_type="q8_0") for threads in (1, 2))
    prompt = prompt_of(one, passage, 600)
    check_same(
        answer(one, request(prompt, temperature=0.8)),
        answer(two, request(prompt, mode="s2-exact", temperature=0.8)),
    )


class EveryDraft:
    """Drafts each block as another of DRAFTS says, in a mixed order, until each had `blocks` of its length.

    Exactness belongs to a block: between two of them there is nothing but the KV cache and the state of the
    sampler.
    """

    def __init__(self, session: Session, asked: Request, blocks: int) -> None:
        self._drafters = {
            draft: SelfDraft(
                session, replace(asked, speculation=Speculation("s2-exact", *draft, "fixed")), Experience()
            )
            for draft in DRAFTS
        }
        self.left = [draft for draft in DRAFTS for _ in range(blocks)]
        random.Random(1).shuffle(self.left)

    def begin(self) -> None: ...

    def propose(self, root: int, length: int, target: Sampler) -> Draft:
        wanted = self.left[-1]
        assert length >= wanted[1], "the answer's end is too near"
        draft = self._drafters[wanted].propose(root, wanted[1], target)
        assert len(draft.tokens) == wanted[1]
        self.left.pop()
        return draft

    def judged(self, draft: Draft, accepted: int, looked_at: int, ms: float) -> None: ...

    def close(self) -> None:
        for drafter in self._drafters.values():
            drafter.close()


@pytest.mark.full
@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_every_draft_in_every_setting(
    loader: Loader, passage: str, setting: tuple[int, int, float, str]
) -> None:
    check_every_draft(loader, passage, setting, blocks=2)


def test_every_draft(loader: Loader, passage: str) -> None:
    check_every_draft(loader, passage, (2, 300, 0.8, "f16"), blocks=1)


def check_every_draft(
    loader: Loader, passage: str, setting: tuple[int, int, float, str], blocks: int
) -> None:
    threads, cells, temperature, cache_type = setting
    session = loader.get(threads=threads, cache_type=cache_type)
    asked = request(
        prompt_of(session, passage, cells), mode="s2-exact", length=31, temperature=temperature, tokens=2000
    )
    asked = replace(asked, ignore_eos=True)
    every, ids = EveryDraft(session, asked, blocks), list[int]()
    with closing(generate(session, asked, CancelFlag(), every)) as events:
        for event in events:
            ids += event.ids if isinstance(event, Tokens) else ()
            if not every.left:
                break
    cells, cache = len(session.timeline), cache_bytes(session)
    plain = answer(session, replace(asked, max_tokens=len(ids), speculation=Speculation("ar")))
    assert plain.ids == tuple(ids)
    assert plain.cells == cells
    assert plain.cache == cache, "equal tokens, but another KV cache"


def test_with_penalties_and_narrow_sampling(warm: Session, passage: str) -> None:
    prompt = prompt_of(warm, passage, 300)
    settings = {"temperature": 0.7, "repeat_penalty": 1.2, "presence_penalty": 0.3, "top_k": 20, "min_p": 0.1}
    plain = answer(warm, request(prompt, **settings))  # type: ignore[arg-type]
    drafted = answer(warm, request(prompt, mode="s2-exact", **settings))  # type: ignore[arg-type]
    check_same(plain, drafted)


def test_draft_length_zero_is_plain_decode(warm: Session, passage: str) -> None:
    prompt = prompt_of(warm, passage, 300)
    plain = answer(warm, request(prompt))
    none = answer(warm, request(prompt, mode="s2-exact", length=0))
    check_same(plain, none)
    assert none.timings.draft_n == 0
    assert none.timings.verify_n == plain.timings.verify_n


def test_it_really_drafts(warm: Session, passage: str) -> None:
    """G6: some drafts live, some die, and blocks deliver more than one token."""
    timings = answer(warm, request(prompt_of(warm, passage, 600), mode="s2-exact", tokens=96)).timings
    assert 0 < timings.draft_n_accepted < timings.draft_n
    assert timings.verify_n < 95


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_all_experts_draft_what_the_target_draws(warm: Session, passage: str, temperature: float) -> None:
    """G10: with k' = k drafter and target are one and the same."""
    prompt = prompt_of(warm, passage, 600)
    timings = answer(
        warm,
        request(prompt, mode="s2-exact", k=warm.info.n_expert_used, length=7, temperature=temperature),
    ).timings
    assert timings.draft_n_accepted == timings.draft_n > 0


@pytest.mark.parametrize("wrong", [0, 1, 2, 3, 4, 5, 6, 7, None])
def test_scripted_drafts_cut_at_every_place(warm: Session, passage: str, wrong: int | None) -> None:
    """G10: all rejected, all accepted, and a cut after each place in between."""
    prompt = prompt_of(warm, passage, 600)
    plain = answer(warm, request(prompt, tokens=40))
    script = Script(plain.ids, warm, len(prompt), wrong)
    drafted = answer(warm, request(prompt, mode="s2-exact", length=8, tokens=40), script)
    check_same(plain, drafted)
    if wrong is None:
        assert drafted.timings.draft_n_accepted == drafted.timings.draft_n
    elif wrong == 0:
        assert (
            drafted.timings.draft_n_accepted <= 1
        )  # a block of one draft at the very end has no room to err


@pytest.mark.parametrize("tokens", range(1, 10))
def test_max_tokens_cuts_inside_a_block(warm: Session, passage: str, tokens: int) -> None:
    prompt = prompt_of(warm, passage, 300)
    plain = answer(warm, request(prompt, tokens=tokens))
    script = Script(answer(warm, request(prompt, tokens=20)).ids, warm, len(prompt), None)
    drafted = answer(warm, request(prompt, mode="s2-exact", length=8, tokens=tokens), script)
    check_same(plain, drafted)
    assert len(drafted.ids) == drafted.timings.predicted_n == tokens


def test_stop_string_cuts_inside_a_block(warm: Session, passage: str) -> None:
    prompt = prompt_of(warm, passage, 300)
    whole = answer(warm, request(prompt, tokens=48))
    stop = whole.text[len(whole.text) // 2 :][:5]
    plain = answer(warm, request(prompt, tokens=48, stop=(stop,)))
    script = Script(whole.ids, warm, len(prompt), None)
    drafted = answer(warm, request(prompt, mode="s2-exact", length=16, tokens=48, stop=(stop,)), script)
    assert plain.reason == "stop_string"
    assert stop not in plain.text
    assert whole.text.startswith(plain.text)
    check_same(plain, drafted)


def test_end_of_sequence_cuts_inside_a_block(session: Session) -> None:
    from engine.chat import Message

    # One of them has an answer that ends soon, whatever the model.
    questions = ("What is the capital of France? One word.", "What is 2 + 2?", "Say hello.")
    prompts = (session.dialogue.tokenize_chat([Message("user", question)]) for question in questions)
    answers = ((prompt, answer(session, request(prompt, tokens=200))) for prompt in prompts)
    prompt, plain = next(found for found in answers if found[1].reason == "eos")
    script = Script((*plain.ids, session.vocab.eos, *plain.ids), session, len(prompt), None)
    drafted = answer(session, request(prompt, mode="s2-exact", length=16, tokens=200), script)
    check_same(plain, drafted)


@pytest.mark.parametrize("left", [1, 2, 3, 5, 9])
def test_the_context_ends_inside_a_block(loader: Loader, passage: str, left: int) -> None:
    session = loader.get(threads=2, n_ctx=512)
    prompt = prompt_of(session, passage, session.n_ctx - left)
    unlimited = request(prompt, tokens=10_000, mode="s2-exact", length=16)
    plain = answer(session, request(prompt, tokens=10_000))
    drafted = answer(session, unlimited)
    assert plain.reason in ("context", "eos")
    check_same(plain, drafted)


def test_threads_may_change_in_the_middle(session: Session, passage: str) -> None:
    """The engine gives threads up when the machine is crowded; that must not show in the text."""
    prompt = prompt_of(session, passage, 600)
    steady = answer(session, request(prompt, temperature=0.8))
    try:
        for narrow, wide in ((2, 1), (1, 2), (4, 3)):
            session.rewind(0)
            llama().llama_set_n_threads(session.context, narrow, wide)
            moved = answer(session, request(prompt, mode="s2-exact", temperature=0.8))
            check_same(steady, moved)
    finally:
        llama().llama_set_n_threads(session.context, 2, 2)


def test_the_gate_can_fail(session: Session, passage: str) -> None:
    """With the stock kernels a row's bits depend on its neighbours, and this very comparison sees it."""
    prompt = prompt_of(session, passage, 600)
    session.rewind(0)
    for at in range(0, len(prompt), session.plan.n_ubatch):
        session.extend(prompt[at : at + session.plan.n_ubatch], all_logits=False)
    rows = prompt[:4]

    def together_and_alone() -> tuple[bytes, bytes]:
        session.extend(rows, all_logits=True)
        together = cache_bytes(session)
        session.rewind(len(prompt))
        for row in rows:
            session.extend((row,), all_logits=True)
        alone = cache_bytes(session)
        session.rewind(len(prompt))
        return together, alone

    together, alone = together_and_alone()
    assert together == alone
    session.hooks.set_rows_exact(0)
    try:
        together, alone = together_and_alone()
    finally:
        session.hooks.set_rows_exact(ROWS_EXACT)
    assert together != alone
