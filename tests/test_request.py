"""Settings that make no sense are refused in words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from engine.errors import BadRequest
from engine.request import MAX_DRAFT_LENGTH, Request, Sampling, Speculation

WRONG_SAMPLING: list[tuple[str, Any]] = [
    ("temperature", -0.1),
    ("temperature", math.nan),
    ("temperature", math.inf),
    ("temperature", "warm"),
    ("temperature", None),
    ("temperature", True),
    ("top_p", 1.01),
    ("min_p", -1),
    ("top_k", -1),
    ("top_k", 1.5),
    ("top_k", 1 << 40),
    ("repeat_penalty", 0),
    ("repeat_last_n", -2),
    ("repeat_last_n", 2.0),
    ("presence_penalty", 101),
    ("frequency_penalty", math.nan),
    ("seed", -1),
    ("seed", 1 << 32),
    ("seed", 0.5),
]


@pytest.mark.parametrize(("name", "value"), WRONG_SAMPLING, ids=str)
def test_sampling_says_what_is_wrong_and_what_is_right(name: str, value: object) -> None:
    with pytest.raises(BadRequest) as caught:
        Sampling(**{name: value})  # type: ignore[arg-type]
    assert caught.value.message == f"{name} is {value!r}"
    assert "number from" in caught.value.hint
    assert "\n" not in caught.value.line()


def test_the_ends_of_every_range_are_right() -> None:
    Sampling(temperature=0, top_k=0, top_p=0, min_p=0, repeat_penalty=0.01, repeat_last_n=-1, seed=0)
    Sampling(temperature=100, top_k=1 << 30, top_p=1, min_p=1, repeat_penalty=100, seed=(1 << 32) - 1)
    assert Sampling().seed is None


@pytest.mark.parametrize(
    ("settings", "hint"),
    [
        ({"mode": "turbo"}, "one of auto, ar, s2-exact, ngram, s2"),
        ({"mode": ""}, "one of auto, ar, s2-exact, ngram, s2"),
        ({"draft_experts": 0}, "a whole number from 1 to"),
        ({"draft_experts": 2.5}, "a whole number from 1 to"),
        ({"cap": 0}, "a whole number from 1 to"),
        ({"beta": -0.5}, "a number from 0 to 100"),
        ({"draft_length": -1}, f"a whole number from 0 to {MAX_DRAFT_LENGTH}"),
        ({"draft_length": MAX_DRAFT_LENGTH + 1}, f"a whole number from 0 to {MAX_DRAFT_LENGTH}"),
        ({"draft_length": True}, f"a whole number from 0 to {MAX_DRAFT_LENGTH}"),
    ],
    ids=str,
)
def test_speculation_says_what_is_possible(settings: dict[str, Any], hint: str) -> None:
    with pytest.raises(BadRequest) as caught:
        Speculation(**settings)
    assert hint in caught.value.hint


def test_the_ends_of_speculation() -> None:
    assert Speculation("s2-exact", 1, 0).draft_length == 0
    assert Speculation("s2-exact", 8, MAX_DRAFT_LENGTH).draft_length == MAX_DRAFT_LENGTH


def test_a_request_is_plain_decode_until_told_otherwise() -> None:
    request = Request(prompt=(1, 2))
    assert request.speculation.mode == "ar"
    assert request.max_tokens is None
