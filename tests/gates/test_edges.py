"""E4 to E6: honest figures, nothing left over between chats, and the end of the context."""

from __future__ import annotations

from dataclasses import replace

import pytest
from decoding import Loader, Script, answer, prompt_of, request

from engine.chat import Message
from engine.errors import BadRequest, ContextFull, S2Error
from engine.events import Tokens
from engine.loop import generate
from engine.model import read_model_info
from engine.native import CancelFlag
from engine.paths import EMBEDDED_MODEL
from engine.request import Request, Sampling, Speculation
from engine.session import Session

USED = read_model_info(EMBEDDED_MODEL).n_expert_used


@pytest.fixture
def short(loader: Loader) -> Session:
    """A session whose context is full after 512 tokens."""
    session = loader.get(threads=2, n_ctx=512)
    session.rewind(0)
    return session


def endless(prompt: tuple[int, ...], mode: str, length: int, **settings: float) -> Request:
    """Goes on behind ends of sequence, up to the end of the context."""
    asked = request(prompt, mode=mode, length=length, tokens=10_000, **settings)  # type: ignore[arg-type]
    return replace(asked, ignore_eos=True, max_tokens=None)


# --- E4: figures


@pytest.mark.parametrize("wrong", [0, 1, 3, 7, None])
def test_figures_of_a_drafter_with_a_known_outcome(warm: Session, passage: str, wrong: int | None) -> None:
    """A block accepts what stands before the wrong draft, and the target's own token follows."""
    prompt = prompt_of(warm, passage, 300)
    ids = answer(warm, request(prompt, tokens=20)).ids
    script = Script(ids, warm, len(prompt), wrong)
    timings = answer(warm, request(prompt, mode="s2-exact", length=8, tokens=20), script).timings
    tested = accepted = passes = 0
    left = len(ids) - 1  # the first token follows from the prompt alone
    while left:
        drafts = min(8, left - 1)
        good = drafts if wrong is None else min(wrong, drafts)
        tested, accepted, passes, left = tested + drafts, accepted + good, passes + 1, left - good - 1
    assert (timings.draft_n, timings.draft_n_accepted, timings.verify_n) == (tested, accepted, passes)
    assert timings.acceptance == accepted / tested
    assert timings.predicted_n == 20 == 1 + passes + accepted


def test_never_over_all_at_any_moment(session: Session, passage: str) -> None:
    prompt = prompt_of(session, passage, 300)
    for length in (1, 31):
        asked = request(prompt, mode="s2-exact", k=6, length=length, tokens=40, temperature=0.8)
        for event in generate(session, asked, CancelFlag()):
            if isinstance(event, Tokens):
                assert 0 <= event.timings.draft_n_accepted <= event.timings.draft_n
                assert event.timings.acceptance is None or event.timings.acceptance <= 1


def test_nothing_verified_is_none_not_a_number(session: Session, passage: str) -> None:
    prompt = prompt_of(session, passage, 300)
    one = answer(session, request(prompt, mode="s2-exact", tokens=1)).timings
    assert (one.draft_n, one.acceptance, one.tokens_per_pass) == (0, None, None)
    plain = answer(session, request(prompt, tokens=9)).timings
    assert (plain.draft_n, plain.acceptance, plain.tokens_per_pass) == (0, None, 1)
    flag = CancelFlag()
    flag.set()
    cancelled = answer(session, request(prompt, mode="s2-exact"), cancel=flag)
    assert (cancelled.reason, cancelled.timings.acceptance) == ("cancel", None)


def test_figures_begin_anew_with_each_answer(session: Session, passage: str) -> None:
    prompt = prompt_of(session, passage, 300)
    once, again = (answer(session, request(prompt, mode="s2-exact", tokens=30)).timings for _ in range(2))
    assert (again.draft_n, again.draft_n_accepted, again.verify_n, again.predicted_n) == (
        once.draft_n,
        once.draft_n_accepted,
        once.verify_n,
        once.predicted_n,
    )


# --- E5: nothing of one chat in another


def test_a_new_chat_is_as_in_a_fresh_engine(session: Session, passage: str) -> None:
    """Penalties, random numbers, drafts and cache of a long chat leave no trace in the next one."""
    asked = request(
        session.dialogue.tokenize_chat([Message("user", "Name three animals.")]),
        mode="s2-exact",
        temperature=0.8,
        tokens=40,
        repeat_penalty=1.1,
    )
    answer(session, request(prompt_of(session, passage, 900), mode="s2-exact", k=5, length=16, tokens=80))
    answer(session, request(session.dialogue.tokenize_text("The sea is"), mode="s2-exact", k=5, tokens=40))
    used = answer(session, asked)
    fresh_loader = Loader(EMBEDDED_MODEL)
    try:
        fresh = answer(fresh_loader.get(threads=2), asked)
    finally:
        fresh_loader.close()
    assert (used.ids, used.text, used.reason) == (fresh.ids, fresh.text, fresh.reason)
    assert used.cache == fresh.cache
    assert used.timings.cache_n <= 8, "only what the template begins with"
    assert (used.timings.draft_n, used.timings.draft_n_accepted) == (
        fresh.timings.draft_n,
        fresh.timings.draft_n_accepted,
    )


# --- E6: the end of the context


@pytest.mark.parametrize(("mode", "length"), [("ar", 0), ("s2-exact", 16), ("s2-exact", 31)])
def test_an_answer_to_the_end_of_the_context(short: Session, passage: str, mode: str, length: int) -> None:
    prompt = prompt_of(short, passage, 440)
    result = answer(short, endless(prompt, mode, length))
    assert result.reason == "context"
    # The last token needs no cell: nothing can follow it.
    assert len(prompt) + len(result.ids) == short.n_ctx + 1
    assert result.cells == short.n_ctx
    plain = answer(short, endless(prompt, "ar", 0))
    assert result.ids == plain.ids
    assert result.cache == plain.cache


def test_a_context_that_is_full_serves_the_next_chat(short: Session, passage: str) -> None:
    answer(short, endless(prompt_of(short, passage, 500), "s2-exact", 16))
    prompt = short.dialogue.tokenize_chat([Message("user", "Hi")])
    after = answer(short, request(prompt, mode="s2-exact", tokens=8))
    short.rewind(0)
    assert after.ids == answer(short, request(prompt, tokens=8)).ids


def test_one_free_cell_gives_two_tokens(short: Session, passage: str) -> None:
    result = answer(short, endless(prompt_of(short, passage, short.n_ctx - 1), "s2-exact", 16))
    assert (len(result.ids), result.reason) == (2, "context")


@pytest.mark.parametrize("extra", [0, 1, 5000])
def test_a_prompt_longer_than_the_context_is_refused(short: Session, passage: str, extra: int) -> None:
    kept = answer(short, request(prompt_of(short, passage, 100), tokens=4)).cells
    with pytest.raises(ContextFull, match=f"{short.n_ctx + extra} tokens, the context holds 512") as caught:
        answer(short, request(prompt_of(short, passage, short.n_ctx + extra), mode="s2-exact"))
    assert "larger -c" in caught.value.hint
    assert len(short.timeline) == kept, "what stood in the cache is still there"


@pytest.mark.parametrize("text", ["a" * 5_000_000, "word " * 1_000_000, "猫" * 2_000_000])
def test_a_book_is_refused_without_being_tokenised(
    short: Session, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def tokenize(*_: object, **__: object) -> list[int]:
        raise AssertionError

    monkeypatch.setattr(short.vocab, "tokenize", tokenize)
    for ask in (
        lambda: short.dialogue.tokenize_text(text),
        lambda: short.dialogue.tokenize_chat([Message("user", text)]),
    ):
        with pytest.raises(ContextFull, match=r"more than [0-9]+ tokens, the context holds 512"):
            ask()


def test_what_might_fit_is_not_refused_for_its_length(short: Session) -> None:
    spaces = max((short.vocab.piece(token) for token in range(len(short.vocab))), key=len).decode()
    text = spaces * (short.n_ctx - 40)
    assert len(text) > 10 * short.n_ctx
    assert len(short.dialogue.tokenize_text(text)) < short.n_ctx


def test_a_prompt_of_one_token(short: Session) -> None:
    prompt = (short.vocab.bos,)
    plain = answer(short, request(prompt, tokens=12))
    short.rewind(0)
    drafted = answer(short, request(prompt, mode="s2-exact", length=16, tokens=12))
    assert drafted.ids == plain.ids


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Request(prompt=()), "empty"),
        (Request(prompt=(1,), max_tokens=0), "max_tokens is 0"),
        (Request(prompt=(1,), max_tokens=-3), "max_tokens is -3"),
        (
            Request(prompt=(1,), speculation=Speculation("s2-exact", USED + 1, 4)),
            f"{USED + 1} draft experts, the model uses {USED}",
        ),
    ],
    ids=["no prompt", "no tokens", "fewer than none", "more experts than there are"],
)
def test_requests_that_make_no_sense(short: Session, asked: Request, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as caught:
        next(iter(generate(short, asked, CancelFlag())))
    assert isinstance(caught.value, S2Error)
    assert caught.value.hint


EXTREMES = [
    Sampling(temperature=1e-45, seed=1),
    Sampling(temperature=100.0, seed=1),
    Sampling(top_p=0.0, seed=1),
    Sampling(min_p=1.0, seed=1),
    Sampling(top_k=1 << 30, seed=1),
    Sampling(repeat_penalty=0.01, repeat_last_n=1 << 30, seed=1),
    Sampling(repeat_penalty=100.0, repeat_last_n=-1, seed=1),
    Sampling(presence_penalty=100.0, frequency_penalty=-100.0, seed=1),
]


@pytest.mark.parametrize("sampling", EXTREMES, ids=str)
def test_sampling_at_the_ends_of_its_ranges(short: Session, sampling: Sampling) -> None:
    prompt = short.dialogue.tokenize_chat([Message("user", "Hi")])
    plain = Request(prompt, sampling, max_tokens=12)
    drafted = replace(plain, speculation=Speculation("s2-exact", 2, 4))
    expected = answer(short, plain)
    short.rewind(0)
    assert answer(short, drafted).ids == expected.ids
    if sampling.temperature < 1e-6 or sampling.top_p == 0 or sampling.min_p == 1:
        likeliest = answer(short, replace(plain, sampling=Sampling(temperature=0)))
        assert expected.ids == likeliest.ids
