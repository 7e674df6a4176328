"""G5 for several conversations: one that comes back finds its cells again, the same to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from decoding import answer, prompt_of, request
from families import FAMILIES, write_family
from toys import load, write_llama

from engine.memory import rss_bytes
from engine.paths import EMBEDDED_MODEL
from engine.session import Session

_NEXT = "<|im_end|>\n<|im_start|>user\nAnd then?<|im_end|>\n<|im_start|>assistant\n"


def follow(session: Session, prompt: tuple[int, ...], ids: tuple[int, ...]) -> tuple[int, ...]:
    """The prompt of a second turn."""
    return (*prompt, *ids, *session.vocab.tokenize(_NEXT, add_special=False, parse_special=True))


@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_a_conversation_goes_on_as_if_no_other_had_come_between(passage: str, cache_type: str) -> None:
    with load(EMBEDDED_MODEL, n_ctx=512, cache_type=cache_type) as session:
        mine, other = prompt_of(session, passage, 100), prompt_of(session, passage[900:], 110)
        first = answer(session, request(mine, tokens=6))
        alone = answer(session, request(follow(session, mine, first.ids), tokens=6))
        session.keep_conversations(lambda: 1 << 30)
        session.rewind(0)
        assert answer(session, request(mine, tokens=6)).cache == first.cache
        answer(session, request(other, tokens=4))
        assert session.kept_bytes > 0
        between = answer(session, request(follow(session, mine, first.ids), tokens=6))
        assert between.timings.cache_n == alone.timings.cache_n > 100
        assert (between.ids, between.cache) == (alone.ids, alone.cache)
        again = answer(session, request(follow(session, other, ()), tokens=1))
        assert again.timings.cache_n >= 110, "the other one was kept as well"


def test_what_is_let_go_of_goes_back_to_the_system(passage: str) -> None:
    with load(EMBEDDED_MODEL, n_ctx=512) as session:
        session.keep_conversations(lambda: 1 << 30)
        prompts = [prompt_of(session, passage[at:], 200) for at in (0, 500, 1000)]
        for _ in range(3):  # malloc learns from what is freed
            for prompt in prompts:
                answer(session, request(prompt, tokens=1))
            kept, before = session.kept_bytes, rss_bytes()
            assert kept > 8 << 20
            session.forget_conversations()
            assert before - rss_bytes() > 0.9 * kept


@pytest.mark.parametrize("name", ["gpt-oss", "gemma4"])
def test_behind_a_sliding_window_it_is_read_again(name: str, tmp_path: Path) -> None:
    """What llama.cpp would put back lacks the cells before the last window: an edited question needs them."""
    mine, other = tuple(range(263, 355)) * 3, tuple(range(354, 262, -1)) * 2
    edited = replace(request((*mine[:150], *other[:20]), tokens=8), ignore_eos=True)
    with load(write_family(tmp_path / "toy.gguf", FAMILIES[name])) as session:
        alone = answer(session, edited)
        session.keep_conversations(lambda: 1 << 30)
        session.rewind(0)
        for length in range(120, 260, 20):
            answer(session, replace(edited, prompt=mine[:length]))
        answer(session, replace(edited, prompt=other))
        between = answer(session, edited)
        assert session.kept_bytes == between.timings.cache_n == 0
        assert (between.ids, between.cache) == (alone.ids, alone.cache)


def test_no_more_is_kept_than_there_is_room_for(tmp_path: Path) -> None:
    with load(write_llama(tmp_path / "toy.gguf")) as session:
        rooms = [1 << 30]
        session.keep_conversations(lambda: rooms[0])
        prompts = [
            tuple(session.vocab.tokenize(letter * 160, add_special=True, parse_special=False))
            for letter in "abcd"
        ]
        for prompt in prompts:
            answer(session, request(prompt, tokens=2))
        three = session.kept_bytes
        rooms[0] = three - 1
        answer(session, request(prompts[0][:90], tokens=1))
        assert 0 < session.kept_bytes <= three - 1
        rooms[0] = 0
        answer(session, request(prompts[1], tokens=1))
        assert session.kept_bytes == 0
        session.forget_conversations()
