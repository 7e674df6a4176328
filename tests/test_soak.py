"""The soak finds what it is there to find, and a short one goes through kills and comes to its verdict."""

from __future__ import annotations

import json

import pytest

from engine.bench import main, soak
from engine.bench.soak import Life
from engine.bench.visitor import Asked, Expected, Talk

TALK: Talk = (("user", "Tell me."),)


def asked(text: str, *, finish: str = "max_tokens", cached: int = 0, talk: Talk = TALK) -> Asked:
    found = Asked(talk, "ar")
    found.text, found.finish, found.cached = text, finish, cached
    return found


def test_an_answer_fits_the_one_of_its_own_prompt_only() -> None:
    expected = Expected()
    expected.add(asked("a long story"))
    expected.add(asked("a longer story", cached=40))
    assert expected.fits(asked("a long story"))
    assert expected.fits(asked("a longer story", cached=44))
    assert expected.fits(asked("a lo", finish="cancel"))
    assert expected.fits(asked("", finish=""))
    assert not expected.fits(asked("a longer story"))
    assert not expected.fits(asked("a long"))
    assert not expected.fits(asked("another", finish="cancel"))
    assert not expected.fits(asked("a long story", talk=(("user", "Never asked."),)))


def test_growth_is_counted_from_the_first_rest_that_is_warm() -> None:
    assert Life([]).growth == Life([100]).growth == Life([100, 200]).growth == 0
    assert Life([100, 200, 202]).growth == pytest.approx(0.01)


def test_a_short_soak(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(soak, "_QUIET_EVERY_S", 1.0)
    monkeypatch.setattr(soak, "_RESTS_PER_LIFE", 1)
    assert main(["soak", "--minutes", "0.3", "--clients", "2", "-t", "1", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert [verdict[name] for name in ("passed", "mixed", "lost", "crashes")] == [True, 0, 0, 0]
    assert verdict["kills"] >= 1
    assert verdict["rests"] > verdict["kills"]
    assert verdict["rss_growth"] <= 0.02
