"""A second turn prefills only what is new, and the same prompt gives the same bits again."""

from __future__ import annotations

from decoding import answer, prompt_of, request

from engine.chat import Message
from engine.session import Session


def test_second_turn_decodes_only_its_new_tokens(session: Session) -> None:
    talk = [Message("user", "Name three colours and say where they are found.")]
    prompt = session.dialogue.tokenize_chat(talk)
    first = answer(session, request(prompt, temperature=0.8, tokens=60))
    talk += [Message("assistant", first.text), Message("user", "And which one is the sea?")]
    second = session.dialogue.tokenize_chat(talk)
    assert second[: len(prompt) + len(first.ids)] == (*prompt, *first.ids)
    timings = answer(session, request(second, tokens=8)).timings
    unread = first.reason == "max_tokens"  # the last token was drawn and not decoded
    assert timings.cache_n == first.cells == len(prompt) + len(first.ids) - unread
    assert timings.prompt_n == len(second) - timings.cache_n


def test_asking_again_gives_the_same_bits(session: Session, passage: str) -> None:
    prompt = prompt_of(session, passage, 1100)
    once = answer(session, request(prompt, tokens=24))
    again = answer(session, request(prompt, tokens=24))
    assert again.timings.cache_n == 1024  # the last, ragged micro-batch is read again as one
    assert again.ids == once.ids
    assert again.cache == once.cache


def test_another_prompt_in_between_changes_nothing(session: Session, passage: str) -> None:
    prompt, other = prompt_of(session, passage, 700), prompt_of(session, passage[900:], 400)
    once = answer(session, request(prompt, mode="s2-exact", temperature=0.8))
    answer(session, request(other, mode="s2-exact", temperature=0.8))
    again = answer(session, request(prompt, mode="s2-exact", temperature=0.8))
    assert again.ids == once.ids
    assert again.cache == once.cache
