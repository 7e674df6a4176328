"""The cause of an engine's end in words."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from engine import death


@pytest.mark.parametrize(
    ("code", "oom_kills", "words"),
    [
        (-signal.SIGSEGV, 0, "SIGSEGV"),
        (-signal.SIGABRT, 0, "SIGABRT"),
        (-signal.SIGILL, 0, "instructions the CPU lacks"),
        (-signal.SIGBUS, 0, "model file was cut short"),
        (-signal.SIGKILL, 1, "because memory ran out"),
        (-signal.SIGKILL, 0, "most likely memory ran out"),
        (-signal.SIGRTMIN, 0, f"signal {int(signal.SIGRTMIN)}"),
        (3, 0, "exit code 3"),
        (None, 0, "exit status is not known"),
        (None, 1, "ran out of memory"),
    ],
)
def test_causes(code: int | None, oom_kills: int, words: str) -> None:
    end = death.describe(code, "one\ntwo\n", oom_kills=oom_kills)
    assert words in end.cause
    assert not end.expected
    assert end.log_lines == ("one", "two")


def test_the_fault_handlers_words_help_those_who_did_not_start_it() -> None:
    end = death.describe(
        None, "Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n"
    )
    assert "SIGSEGV" in end.cause


def test_a_stack_trace_is_not_shown() -> None:
    log = "a reason\nFatal Python error: Bus error\n\nThread 0x1:\n, numpy (total: 4)\n"
    assert death.describe(-signal.SIGBUS, log).log_lines == ("a reason",)


@pytest.mark.parametrize(("code", "log"), [(0, ""), (None, f"warning\n{death.LOG_END} in good order\n")])
def test_an_engine_that_left_in_good_order_is_no_crash(code: int | None, log: str) -> None:
    assert death.describe(code, log).expected


def test_only_the_last_lines_of_that_engine_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    assert death.log_of(log, "b") == ""
    old, new = (
        f"{death.LOG_START} a\nold\n",
        f"{death.LOG_START} b\n" + "".join(f"line {i}\n" for i in range(20)),
    )
    log.write_text(old + new)
    assert death.describe(1, death.log_of(log, "b")).log_lines == tuple(f"line {i}" for i in range(12, 20))
    assert death.log_since(log, len(old)) == new
    log.write_text("cut since\n")
    assert death.log_since(log, 10_000) == "cut since\n"


def test_the_oom_count_can_be_read_here() -> None:
    assert death.oom_kill_count() >= 0
