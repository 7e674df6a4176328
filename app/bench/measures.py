"""What is measured of the interface, each against its bar: a real process on a real pseudo-terminal.

The model is played by `app.bench.stand`; everything else is as a person has it.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import psutil

from app.bench import prose
from app.bench.stand import Stand, standing
from app.history import History
from engine.bench.terminal import Terminal
from engine.errors import S2Error
from engine.paths import Paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KEY_BAR_MS = 100.0
_MEMORY_BAR_MB = 200.0
_OPEN_BAR_S = _START_BAR_S = 1.0

_PATIENCE_S = 20.0
_LETTERS = [chr(0x410 + number) for number in range(64)]  # Cyrillic: nothing else on the screen has them
_USABLE = "Enter sends"
_CLEAR, _NEW, _LIST, _ENTER, _DOWN = "\x15", "\x0e", "\x0f", "\r", "\x1b[B"
_STORM_EVERY_S = 8.0
_STORM = ((200, 50), (40, 12), (120, 30), (1, 1), (80, 24), (60, 20), (160, 45), (1, 1), (100, 30))
_STORM_STEP_S = 0.1


class Key(NamedTuple):
    """From a key to the screen, and what of that the interface waited for a core that others had."""

    ms: float
    waited_ms: float


class MeasureError(S2Error):
    """The interface did not do what it was to be timed at."""


@dataclass(frozen=True, slots=True)
class Measure:
    """`value` passes below `bar`; `more` tells what else was seen on the way."""

    name: str
    value: float
    bar: float
    more: dict[str, float | int | bool] = field(default_factory=dict)

    def as_row(self) -> dict[str, object]:
        row = {"bench": "ui", "measure": self.name, "value": round(self.value, 3), "bar": self.bar}
        return {**row, "pass": self.value < self.bar, **self.more}


@contextlib.contextmanager
def interface(home: Path, columns: int = 100, lines: int = 30) -> Iterator[Terminal]:
    """`s2chat` with its files below `home`."""
    command = [sys.executable, "-m", "app.cli"]
    terminal = Terminal(command, {"S2CHAT_HOME": str(home)}, columns, lines)
    try:
        yield terminal
    except (TimeoutError, EOFError) as error:
        raise MeasureError(f"the interface failed: {error}") from error
    finally:
        terminal.end()


def chat_of(terminal: Terminal) -> psutil.Process:
    """The interface, which the process that was started waits for."""
    return psutil.Process(terminal.process.pid).children()[0]


def paths_of(home: Path) -> Paths:
    return Paths(runtime=home / "run", state=home / "state", data=home / "data")


def start(home: Path, rounds: int) -> Measure:
    """From the command to a prompt that shows what is typed, with the engine there already."""
    times: list[tuple[float, float, float]] = []
    with standing(Stand((), 1.0), paths_of(home)):
        for _ in range(rounds):
            started = time.monotonic()
            with interface(home) as terminal:
                terminal.wait_for(_USABLE, _PATIENCE_S)
                terminal.type(_LETTERS[0])
                terminal.wait_for(_LETTERS[0], _PATIENCE_S)
                seconds = time.monotonic() - started
                # One begins, and the other goes on where it was: what they took adds up.
                both = (terminal.process.pid, chat_of(terminal).pid)
                ran, waited = map(sum, zip(*map(scheduled, both), strict=True))
                times.append((seconds, ran, waited))
                terminal.type(_CLEAR)
                terminal.watch(0.3)  # it is stored as a draft otherwise
    return _seconds("start_s", times, _START_BAR_S, rounds=rounds)


def opening(home: Path, messages: int, rounds: int) -> Measure:
    """From Enter on a long chat in the list to its last words on the screen, from a chat without any."""
    last = _write_long_chat(paths_of(home), messages)
    times: list[tuple[float, float, float]] = []
    with standing(Stand((), 1.0), paths_of(home)):
        for _ in range(rounds):
            with interface(home) as terminal:
                terminal.wait_for(last, _PATIENCE_S)  # it was the last one that was open
                terminal.type(_NEW)
                terminal.watch(1.0)
                terminal.type(_LIST)
                terminal.wait_for("A long chat", _PATIENCE_S)
                terminal.watch(0.5)
                pid = chat_of(terminal).pid
                before = scheduled(pid)
                terminal.type(_ENTER)
                seconds = terminal.wait_for(last, _PATIENCE_S)
                ran, waited = scheduled(pid)
                times.append((seconds, ran - before[0], waited - before[1]))
    return _seconds("open_s", times, _OPEN_BAR_S, rounds=rounds, messages=messages)


def scheduled(pid: int) -> tuple[float, float]:
    """Seconds that the main thread of process `pid` has run so far, and that it has waited for a core."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def _seconds(name: str, times: Sequence[tuple[float, float, float]], bar: float, **more: int) -> Measure:
    """The median of `times`: seconds, and of these running and waiting for a core that others had.

    `but_waiting` is what it would have been, about, on a machine of its own.
    """
    seconds, ran, waited = (median(column) for column in zip(*times, strict=True))
    worst = max(time[0] for time in times)
    seen = {"worst": round(worst, 3), "but_waiting": round(seconds - waited, 3), "ran_s": round(ran, 3)}
    return Measure(name, seconds, bar, {**more, **seen})


def _write_long_chat(paths: Paths, messages: int) -> str:
    """A chat of so many messages, stored; its last words, which stand nowhere else."""
    last = "the very last words"
    history = History(paths.history)
    chat = history.create()
    for turn in range(messages // 2):
        answer = "".join(prose.tokens(120, seed=turn)) + "`and so on`"
        _, number = history.begin_turn(chat, f"Question {turn}: how does a lock lift a boat?", "ar")
        history.finish(number, answer, "done", {"end": ""})
    _, number = history.begin_turn(chat, "And the end?", "ar")
    history.finish(number, f"These are {last}.", "done", {"end": ""})
    history.rename(chat, "A long chat")
    history.close()
    return last


def streaming(home: Path, tokens: Sequence[str], rate: float, spinners: int) -> list[Measure]:
    """Keys, storms of new sizes and memory while an answer of `tokens` streams; then the text, as stored."""
    paths = paths_of(home)
    with standing(Stand(tokens, rate), paths) as stand, interface(home) as terminal, _spinning(spinners):
        terminal.wait_for("ready", _PATIENCE_S)
        terminal.type("Tell me all about locks.")
        terminal.watch(0.5)
        terminal.type(_ENTER)
        terminal.wait_for("answering", _PATIENCE_S)
        ui = psutil.Process(terminal.process.pid)
        busy, began = _cpu_s(ui), time.monotonic()
        calm, stormy = _probe(terminal, stand)
        share = (_cpu_s(ui) - busy) / (time.monotonic() - began)
        memory_mb = sum(process.memory_info().rss for process in _family(ui)) / 1e6
        kept = _stored(terminal, paths) == stand.text
    keys = calm + stormy
    if not keys:
        raise MeasureError("the answer was over before a key could be typed")
    more: dict[str, float | int | bool] = {
        "keys": len(keys),
        "median": round(median(key.ms for key in keys), 1),
        "worst": round(max(key.ms for key in keys), 1),
        "p95_in_storms": round(_p95([key.ms for key in stormy]), 1) if stormy else 0.0,
        "but_waiting": round(_p95([key.ms - key.waited_ms for key in keys]), 1),
        "tokens": len(tokens),
        "tok_s": rate,
        "spinners": spinners,
        "cpu_share": round(share, 3),
        "written_mb": round(terminal.written / 1e6, 2),
        "text_kept": kept,
    }
    if not kept:
        raise MeasureError("the answer that was stored is not the one that was streamed")
    return [
        Measure("key_p95_ms", _p95([key.ms for key in keys]), _KEY_BAR_MS, more),
        Measure("memory_mb", memory_mb, _MEMORY_BAR_MB, {"tokens": len(tokens)}),
    ]


def _probe(terminal: Terminal, stand: Stand) -> tuple[list[Key], list[Key]]:
    """Keys until the answer is over: between storms of new sizes, and in them."""
    calm: list[Key] = []
    stormy: list[Key] = []
    chance, next_storm = random.Random(1), time.monotonic() + _STORM_EVERY_S / 2
    typed = _typing(terminal)
    while stand.streamed < len(stand.tokens):
        if time.monotonic() >= next_storm:
            for columns, lines in _STORM:
                terminal.resize(columns, lines)
                began = time.monotonic()
                if columns > 1:
                    stormy.append(next(typed))
                terminal.watch(max(0.0, began + _STORM_STEP_S - time.monotonic()))
            next_storm = time.monotonic() + _STORM_EVERY_S
        calm.append(next(typed))
        terminal.watch(chance.uniform(0.05, 0.25))
    return calm, stormy


def _typing(terminal: Terminal) -> Iterator[Key]:
    """Types one letter after another, as often as it is asked."""
    pid = chat_of(terminal).pid
    while True:
        for letter in _LETTERS:
            _, before = scheduled(pid)
            terminal.type(letter)
            ms = 1e3 * terminal.wait_for(letter, _PATIENCE_S)
            yield Key(ms, 1e3 * (scheduled(pid)[1] - before))
        terminal.type(_CLEAR)
        terminal.watch(0.3)


def _stored(terminal: Terminal, paths: Paths) -> str:
    """The answer in the history, once it is over there."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        terminal.watch(0.2)
        with contextlib.closing(sqlite3.connect(paths.history)) as database:
            found = database.execute(
                "SELECT content FROM messages WHERE role = 'assistant' AND status = 'done'"
            ).fetchall()
        if found:
            return str(found[-1][0])
    raise MeasureError("the answer was not stored")


def _family(ui: psutil.Process) -> list[psutil.Process]:
    return [ui, *ui.children(recursive=True)]


def _cpu_s(ui: psutil.Process) -> float:
    times = [process.cpu_times() for process in _family(ui)]
    return sum(time.user + time.system for time in times)


def _p95(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


@contextlib.contextmanager
def _spinning(count: int) -> Iterator[None]:
    """So many programs that want a core each, as the decode threads would; they end with this one."""
    loop = f"import os\nwhile os.getppid() == {os.getpid()}:\n for _ in range(1000000): pass"
    spinners = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
