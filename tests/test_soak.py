"""The soak finds what it is there to find, and a short one goes through kills and comes to its verdict."""

from __future__ import annotations

import json
import mmap
from pathlib import Path

import pytest

from engine.bench import main, soak
from engine.bench.life import Life, Rest, slots_resident
from engine.bench.visitor import Asked, Expected, Pace, Talk
from engine.errors import EngineUnavailable

NORESERVE = 0x4000  # mmap.MAP_NORESERVE of later Pythons
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


def life(*lean: int, kept: int = 0) -> Life:
    return Life([Rest(10.0 * at, size + kept + 7, kept, 7, size) for at, size in enumerate(lean)])


def test_growth_is_counted_from_the_first_rest_that_is_warm() -> None:
    assert life().growth == life(100).growth == life(100, 200).growth == 0
    assert life(100, 200, 202).growth == pytest.approx(0.01)
    assert life(100, 200, 210, 202).growth == pytest.approx(0.05), "also what went again"
    assert life(100, 200, 202, kept=50).growth == pytest.approx(0.01)
    assert (life(100).seconds, life(100, 200, 202, 202).seconds) == (0, 20)


def test_slots_are_told_from_other_memory() -> None:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    before = slots_resident(Path("/proc/self/smaps").read_text())
    with (
        mmap.mmap(-1, 4 << 20, flags=flags) as other,
        mmap.mmap(-1, 4 << 20, flags=flags | NORESERVE) as slots,
    ):
        for memory in (other, slots):
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory[:] = b"x" * len(memory)
        assert slots_resident(Path("/proc/self/smaps").read_text()) - before == len(slots)


def test_limits_follow_what_the_machine_does() -> None:
    times = iter((0.0, 2.0, 10.0, 30.0, 40.0))
    pace = Pace(lambda: next(times))
    assert pace.limit_s(120) == 120
    with pace.noted():
        pass  # for 2 s
    assert pace.limit_s(120) == 120
    with pace.noted():
        pass  # for 20 s
    assert pace.limit_s(120) == 400
    with pytest.raises(EngineUnavailable), pace.noted():
        raise EngineUnavailable("it says nothing of how long answers take")
    assert pace.limit_s(120) == 400


def test_a_short_soak(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(soak, "_QUIET_EVERY_S", 1.0)
    monkeypatch.setattr(soak, "_RESTS_PER_LIFE", 1)
    assert main(["soak", "--minutes", "0.3", "--clients", "2", "-t", "1", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert [verdict[name] for name in ("passed", "mixed", "lost", "crashes")] == [True, 0, 0, 0]
    assert verdict["kills"] >= 1
    assert verdict["rests"] > verdict["kills"]
    assert verdict["rss_growth"] <= 0.02
    assert min(verdict["slots_mib"]) > 30
    assert len(verdict["lean_mib"]) == len(verdict["rss_mib"]) == len(verdict["kept_mib"])
    assert all(map(float.__lt__, verdict["lean_mib"], verdict["rss_mib"])), "something is kept at each rest"
    assert min(verdict["kept_mib"]) > 1
