"""G5: after a cancel the engine goes on as one that served the same history without it."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence

import pytest
from decoding import Loader, answer, cache_bytes, prompt_of, request

from engine.context import Context
from engine.errors import Cancelled
from engine.events import Done, Prefill, Tokens
from engine.loop import generate
from engine.native import CancelFlag, log
from engine.session import Session


def go_on(
    session: Session, prompt: tuple[int, ...], delivered: Sequence[int]
) -> tuple[tuple[int, ...], bytes]:
    """The next turn on top of `delivered`."""
    tail = session.vocab.tokenize(
        "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n",
        add_special=False,
        parse_special=True,
    )
    result = answer(session, request((*prompt, *delivered, *tail), mode="s2-exact", tokens=32))
    return result.ids, result.cache


Served = tuple[tuple[int, ...], tuple[tuple[int, ...], bytes]]
WithoutCancel = Callable[[tuple[int, ...], int], Served]


@pytest.fixture(scope="module")
def without_cancel(loader: Loader) -> WithoutCancel:
    """So many tokens of an answer, and the turn behind it, in an engine that nobody interrupts; each once."""
    session = loader.get(threads=2)

    @functools.cache
    def served(prompt: tuple[int, ...], count: int) -> Served:
        session.rewind(0)
        plain = answer(session, request(prompt, tokens=count))
        return plain.ids, go_on(session, prompt, plain.ids)

    return served


@pytest.mark.parametrize("mode", ["ar", "s2-exact", "es", "cascade"])
@pytest.mark.parametrize("passes", [1, 2, 3, 5, 6, 7, 13])
def test_cancel_before_any_pass_of_a_block(
    warm: Session,
    passage: str,
    without_cancel: WithoutCancel,
    mode: str,
    passes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The flag is up when the pass number `passes` begins: a draft step, one that catches up, or the verify
    pass."""
    prompt = prompt_of(warm, passage, 300)
    flag, plain_decode, seen = CancelFlag(), Context.decode, 0

    def decode(cells: Context, tokens: Sequence[int], start: int, *, all_logits: bool) -> None:
        nonlocal seen
        seen += start >= len(prompt)
        if seen == passes:
            flag.set()
        plain_decode(cells, tokens, start, all_logits=all_logits)

    monkeypatch.setattr(Context, "decode", decode)
    cut = answer(warm, request(prompt, mode=mode, length=4), cancel=flag)
    monkeypatch.undo()
    assert cut.reason == "cancel"
    assert cut.cells == len(prompt) + len(cut.ids) - 1
    again = go_on(warm, prompt, cut.ids)
    ids, expected = without_cancel(prompt, len(cut.ids))
    assert cut.ids == ids
    assert again == expected


@pytest.mark.parametrize("milliseconds", [1, 7, 20, 33, 61, 100])
def test_cancel_from_another_thread_at_any_moment(
    session: Session, passage: str, without_cancel: WithoutCancel, milliseconds: int
) -> None:
    prompt = prompt_of(session, passage, 300)
    flag, ids, reason = CancelFlag(), list[int](), ""
    timer = threading.Timer(milliseconds / 1e3, flag.set)
    for event in generate(session, request(prompt, mode="s2-exact", tokens=4000), flag):
        if isinstance(event, Tokens):
            if not ids:
                timer.start()
            ids += event.ids
        elif isinstance(event, Done):
            reason = event.reason
    timer.join()
    assert reason in ("cancel", "eos")
    assert cache_bytes(session)
    if reason == "cancel":
        again = go_on(session, prompt, ids)
        plain, expected = without_cancel(prompt, len(ids))
        assert tuple(ids) == plain
        assert again == expected


def test_a_consumer_that_walks_away(session: Session, passage: str, without_cancel: WithoutCancel) -> None:
    """Closing the generator at a block's end leaves the cache as plain decode would."""
    prompt = prompt_of(session, passage, 300)
    ids: list[int] = []
    events = generate(session, request(prompt, mode="s2-exact"), CancelFlag())
    for event in events:
        if isinstance(event, Tokens):
            ids += event.ids
            if len(ids) > 12:
                break
    events.close()  # type: ignore[attr-defined]
    again = go_on(session, prompt, ids)
    plain, expected = without_cancel(prompt, len(ids))
    assert tuple(ids) == plain
    assert again == expected


def test_cancel_while_the_prompt_is_read(loader: Loader, passage: str) -> None:
    """Whole micro-batches stay, and the same prompt later gives the same bits."""
    session = loader.get(threads=2)
    session.rewind(0)
    prompt = prompt_of(session, passage, 1400)
    flag, seen = CancelFlag(), list[object]()
    for event in generate(session, request(prompt), flag):
        seen.append(event)
        if isinstance(event, Prefill) and event.done == 1024:
            flag.set()
    assert isinstance(seen[-1], Done)
    assert seen[-1].reason == "cancel"
    assert len(session.timeline) == 1024
    resumed = answer(session, request(prompt))
    assert resumed.timings.cache_n == 1024
    session.rewind(0)
    fresh = answer(session, request(prompt))
    assert resumed.ids == fresh.ids
    assert resumed.cache == fresh.cache


def test_cancel_while_the_context_apart_reads_the_prompt(session: Session, passage: str) -> None:
    """What it has read stays true to its tokens: the next answer is drafted and right."""
    prompt = prompt_of(session, passage, 600)
    flag = CancelFlag()
    for event in generate(session, request(prompt, mode="es"), flag):
        if isinstance(event, Prefill) and event.done == len(prompt):
            flag.set()  # the target has read it all, the other context nothing
    assert isinstance(event, Done)
    assert event.reason == "cancel"
    assert len(session.timeline) == len(prompt)
    drafted = answer(session, request(prompt, mode="es", tokens=24))
    assert drafted.timings.draft_n > 0
    session.rewind(0)
    plain = answer(session, request(prompt, tokens=24))
    assert (drafted.ids, drafted.cache) == (plain.ids, plain.cache)


def decode_over_and_over(session: Session, prompt: tuple[int, ...]) -> None:
    for _ in range(1000):
        session.decode(prompt, 0, all_logits=False)
        session.rewind(0)


def test_the_flag_stops_a_pass_that_runs(session: Session, passage: str) -> None:
    """Native code asks between graph nodes: a long pass ends early, and its cells are gone."""
    prompt = prompt_of(session, passage, 512)
    flag = CancelFlag()
    session.hooks.stop_on(flag)
    threading.Timer(0.05, flag.set).start()
    with pytest.raises(Cancelled):
        decode_over_and_over(session, prompt)
    flag.clear()
    session.extend(prompt[:40], all_logits=False)
    assert len(session.timeline) == 40


def test_a_cancel_leaves_nothing_in_the_log(
    session: Session, passage: str, capfd: pytest.CaptureFixture[str]
) -> None:
    flag = CancelFlag()
    log.clear()
    for event in generate(session, request(prompt_of(session, passage, 300), tokens=64), flag):
        if isinstance(event, Tokens):
            flag.set()
    assert log.last() == ""
    assert capfd.readouterr().err == ""
    log.clear()  # as before a model is loaded
    log.write(4, b"loader: no memory\n")
    assert log.last() == "no memory"
