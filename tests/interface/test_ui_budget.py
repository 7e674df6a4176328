"""The memory of the engine in the chat: what the status line says of it, and the command that changes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import chat, rows, shown, soon
from test_ui_chat import LONG, answered, ask, is_ready

from app.board import Board
from app.deeds import DEEDS, matching, typed
from app.labels import ModeLabel
from app.local import careful
from app.options import Load
from app.statusline import Status, _fit
from engine.client import EngineClient
from engine.errors import BadRequest
from engine.events import StoreFigures, Timings
from engine.messages import ModelCard, PlanCard, Settings, Snapshot
from engine.paths import Paths

FIGURES = StoreFigures(asked=200, hits=186, bytes_read=205 << 20, stall_ms=40.0)
TIMINGS = Timings(predicted_n=50, predicted_ms=1000, verify_n=50, store=FIGURES)
SNAPSHOT = Snapshot(
    instance="i",
    state="ready",
    progress=1.0,
    error=None,
    model=None,
    plan=PlanCard(512, 1, 512, store=True),
    settings=Settings("ar", 2, 4),
    modes=(),
    notices=(),
    running=0,
    queued=0,
    clients=1,
    timings=None,
    rss_bytes=3 << 29,
    peak_bytes=7 << 28,
    budget_bytes=2 << 30,
)


def test_the_status_line_tells_of_the_store() -> None:
    status = Status(
        "ready",
        "ready",
        "Moe",
        ModeLabel("ar", exact=True),
        TIMINGS,
        812,
        4096,
        memory="1.5 GiB/2.0 GiB",
        has_store=True,
    )
    assert _fit(status, 200).plain == (
        "● ready │ Moe │ ar =exact │ 50 tok/s │ acc – │ 1.0/pass │ hit 93% │ 4.1 MiB/tok"
        " │ mem 1.5 GiB/2.0 GiB │ ctx 812/4096"
    )
    assert _fit(status, 76).plain == ("● ready │ ar =exact │ 50 tok/s │ hit 93% │ 4.1 MiB/tok │ ctx 812/4096")
    assert _fit(status, 56).plain == "● ready │ ar =exact │ 50 tok/s │ hit 93% │ ctx 812/4096"
    first = replace(status, timings=replace(TIMINGS, store=None))
    assert "hit – │ – MiB/tok" in _fit(first, 200).plain
    without = replace(status, has_store=False, memory="")
    assert "hit" not in _fit(without, 200).plain
    assert "mem" not in _fit(without, 200).plain


def test_the_board_knows_memory_and_budget() -> None:
    board = Board(SNAPSHOT)
    status = board.status(None, False, None)
    assert (status.memory, status.has_store) == ("1.5 GiB/2.0 GiB", True)
    assert board.memory_words == "the engine takes 1.5 GiB of a budget of 2.0 GiB, 1.8 GiB at most so far"
    board = Board(replace(SNAPSHOT, budget_bytes=0, plan=None))
    status = board.status(None, False, None)
    assert (status.memory, status.has_store) == ("", False)
    assert board.memory_words == "the engine takes 1.5 GiB, without a limit, 1.8 GiB at most so far"
    assert Board().memory_words == "starting the engine"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/budget 2G", ("budget", "2G")),
        ("/budget  25 % \n", ("budget", "25 %")),
        ("/budget", ("budget", "")),
        (" /budget", None),
        ("/etc/hosts is a file", None),
        ("/budget 2G\nwhat is that?", None),
        ("/system Be brief.\nBe kind.", ("system", "Be brief.\nBe kind.")),
        ("what does /budget 2G do?", None),
    ],
)
def test_what_is_a_command(text: str, command: tuple[str, str] | None) -> None:
    assert typed(text) == command


@pytest.mark.parametrize("width", [0, 20, 56, 76, 1000])
def test_as_many_commands_as_fit_are_named_whole(width: int) -> None:
    words = matching("/", width)
    names = [word for word in words.split() if word[0] == "/"]
    assert names == [f"/{row.name}" for row in DEEDS][: len(names)]
    if width == 1000:
        assert len(names) == len(DEEDS)
    else:
        assert words.endswith("… F1 shows all")
        assert len(words) <= max(width, len("… F1 shows all"))
        assert len(names) >= (width - 20) // 10
    assert matching("/se", width).split()[0] in ("/set", "…")
    assert matching("/mode x", 20) == "/mode NAME  next mode, from the next answer"


def test_after_crashes_less_is_asked_for() -> None:
    load = Load(Path("m.gguf"), n_ctx=8192, budget="50%")
    model = ModelCard("m.gguf", "Moe", "qwen3moe", 1, 4096, 4096, 64, 8, is_moe=True)
    last = replace(SNAPSHOT, model=model, slot_bytes=1 << 30)
    assert careful(load, last) == replace(load, n_ctx=2048, budget=(2 << 30) - (1 << 28))
    assert careful(load, replace(last, slot_bytes=0)) == replace(load, n_ctx=2048)
    assert careful(load, None) == replace(load, n_ctx=4096)
    assert careful(Load(Path("m.gguf")), None).n_ctx == 512


async def test_the_budget_is_changed_while_an_answer_is_written(
    ready: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int | str] = []

    async def change(_: EngineClient, budget: int | str) -> str:
        asked.append(budget)
        if budget == "1":
            raise BadRequest("a budget of 1 B is too small", hint="500M or more")
        return "budget: 2.0 GiB for the engine"

    monkeypatch.setattr(EngineClient, "change_budget", change)
    app = chat(ready, **LONG)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(is_ready(app))
        await ask(app, "Tell me a long story.")
        await soon(lambda: app.asker.has_text)
        for text in ("/budget 2G", "/budget 1", "/budget"):
            app.prompt.text = text
            app.prompt._send()
            await soon(lambda: app.prompt.text == "")
        await soon(lambda: "the engine takes" in shown(app))
        assert app.is_answering
        assert asked == ["2G", "1"]
        await pilot.press("escape")
        await answered(app)
        assert "budget: 2.0 GiB for the engine" in shown(app)
        assert "a budget of 1 B is too small (500M or more)" in shown(app)
    app.close()
    assert rows(ready, "SELECT content FROM messages WHERE role = 'user'") == [("Tell me a long story.",)]


async def test_a_model_that_fits_can_be_given_a_budget(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test(size=(100, 30)):
        await soon(is_ready(app))
        app.prompt.text = "/budget 2G"
        app.prompt._send()
        await soon(lambda: "budget: 2.0 GiB for the engine" in shown(app))
    app.close()
