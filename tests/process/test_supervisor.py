"""When a dead engine is started again."""

from __future__ import annotations

import os
import signal

import pytest

from engine.death import Death
from engine.errors import EngineCrashed
from engine.paths import Paths
from engine.supervisor import Supervisor

CRASH = Death("it died", False, ("last line",))
LEFT = Death("it left", True, ())


def test_restarts_back_off_and_end(paths: Paths) -> None:
    now = 0.0
    supervisor = Supervisor(paths, clock=lambda: now)
    crashes = [supervisor.judge(CRASH) for _ in range(4)]
    assert [crash.retry_after_s for crash in crashes] == [1.0, 2.0, 4.0, None]
    assert [crash.careful for crash in crashes] == [False, True, True, True]
    assert crashes[0].error.message == "it died\nlast line"
    assert "your next message" in crashes[3].error.hint
    now = 601.0
    assert supervisor.judge(CRASH).retry_after_s == 1.0


def test_leaving_in_good_order_does_not_count(paths: Paths) -> None:
    supervisor = Supervisor(paths)
    assert [supervisor.judge(LEFT).retry_after_s for _ in range(9)] == [0.0] * 9
    assert supervisor.judge(CRASH).retry_after_s == 1.0


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGSEGV, "SIGSEGV"), (signal.SIGABRT, "SIGABRT"), (signal.SIGKILL, "SIGKILL")],
)
def test_a_real_engine_that_died_is_named_and_started_again(
    paths: Paths, number: signal.Signals, words: str
) -> None:
    supervisor = Supervisor(paths)
    assert supervisor.crashed() is None
    first = supervisor.start()
    assert supervisor.crashed() is None
    os.kill(first.hello.pid, number)
    crash = supervisor.crashed()
    assert crash is not None
    assert words in crash.death.cause
    assert isinstance(crash.error, EngineCrashed)
    second = supervisor.start()
    assert second.hello.instance != first.hello.instance


def test_an_engine_that_was_stopped_is_no_crash(paths: Paths) -> None:
    supervisor = Supervisor(paths)
    os.kill(supervisor.start().hello.pid, signal.SIGTERM)
    crash = supervisor.crashed()
    assert crash is not None
    assert crash.death.expected
