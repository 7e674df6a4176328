"""Which mode is shown: of the answer whose text and figures are seen, whatever is chosen for the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest
import still
from still import SNAPSHOT, TIMINGS, StillClient
from support import chat, hint, rows, shown, soon, status
from test_ui_actions import command
from test_ui_chat import LONG, answered, ask, is_ready
from test_ui_machine import line

from app.answer import Answer
from app.board import Board
from app.chat import ChatApp
from app.labels import ModeLabel
from app.machine import MachinePanel
from app.pace import Pace
from engine.events import Timings
from engine.messages import ChatChunk, Progress
from engine.paths import Paths
from engine.request import MODES, is_lossy

STORY = "Tell me a long story."
MODE_OF_ANSWER = "SELECT mode FROM messages WHERE role = 'assistant'"


async def _nowhere(_: str) -> None:
    """Nobody watches."""


def asked_in(mode: str, **more: bool) -> Answer:
    return Answer(_nowhere, lambda _: None, Pace(), mode, **more)


def board(chosen: str) -> Board:
    found = Board(replace(SNAPSHOT, settings=replace(SNAPSHOT.settings, mode="auto")))
    found.set_mode(chosen)
    return found


@pytest.mark.parametrize(
    ("asked", "chosen", "mode", "following"),
    [
        ("s2", "s2", "s2 ≈lossy", "None"),
        ("s2", "auto", "s2 ≈lossy", "auto =exact"),
        ("ar", "s2", "ar =exact", "s2 ≈lossy"),
        ("", "s2", "auto =exact", "s2 ≈lossy"),  # the engine's own was asked for
        ("", "", "auto =exact", "None"),
        ("auto", "", "auto =exact", "None"),
    ],
)
def test_the_mode_of_an_answer_is_that_it_was_asked_in(
    asked: str, chosen: str, mode: str, following: str
) -> None:
    shown_now = board(chosen).status(asked_in(asked), False, None)
    assert (str(shown_now.mode), str(shown_now.next_mode)) == (mode, following)


def test_what_the_engine_says_of_an_answer_wins_and_lossy_text_stays_lossy() -> None:
    answer = asked_in("s2-exact")
    answer.mode = "ar"  # a dense model has no other
    assert board("s2-exact").mode_of(answer) == ModeLabel("ar", exact=True)
    assert board("s2-exact").next_mode(answer) is None
    assert board("ar").mode_of(asked_in("ar", begun_lossy=True)) == ModeLabel("ar", exact=False)
    lost = board("ar")
    lost.lost("starting the engine again", problem=False)
    assert lost.mode_of(asked_in("ar")) == ModeLabel("ar", exact=True)
    assert lost.mode_of(asked_in("s2")) is None


def test_waiting_is_not_thinking() -> None:
    def words(place: str = "", queued: int = 0) -> str:
        waiting = Board(replace(SNAPSHOT, queued=queued), place=place)
        return waiting.status(asked_in("ar"), False, None).words

    assert words() == "waiting for the engine"
    assert words("host.example:443") == "waiting for host.example:443"
    assert words(queued=1) == "waiting for another chat's answer"


@pytest.mark.parametrize("mode", [mode for mode in MODES if is_lossy(mode)])
def test_the_hint_of_a_lossy_mode_says_first_that_the_text_changes(mode: str) -> None:
    assert "another text" in board("ar").set_mode(mode)[:50]


async def test_a_mode_that_is_chosen_meanwhile_is_named_apart(ready: Paths) -> None:
    app = chat(ready, mode="s2", **LONG)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(is_ready(app))
        await ask(app, STORY)
        await soon(lambda: "tok/s" in status(app))
        assert "next" not in status(app)
        await command(app, "/mode auto")
        assert hint(app).startswith("auto =exact")
        app.hint("")
        await soon(lambda: "s2 ≈lossy │ next auto │" in status(app))
        await pilot.press("f12")
        await soon(lambda: isinstance(app.stage.panel, MachinePanel))
        panel = app.stage.panel
        assert isinstance(panel, MachinePanel)
        await soon(lambda: panel.sheet.text)
        assert "auto =exact" in line(panel, "mode")
        assert line(panel, "written in").endswith("s2 ≈lossy")
        await pilot.press("escape", "ctrl+s")
        await soon(lambda: app.watching.panel is not None and "s2 ≈lossy" in app.watching.panel.text)
        await pilot.press("escape")
        await answered(app)
        assert "auto =exact" in status(app)
        assert "tok/s" not in status(app), "those were of another mode"
        assert "s2 ≈lossy" in app.watching.panel.text  # type: ignore[union-attr]
        await pilot.press("ctrl+s", "f12")
        await soon(lambda: isinstance(app.stage.panel, MachinePanel))
        panel = app.stage.panel
        assert isinstance(panel, MachinePanel)
        await soon(lambda: panel.sheet.text)
        assert line(panel, "written in").endswith("s2 ≈lossy")
    app.close()


@pytest.mark.parametrize(("first", "then"), [("s2", "ar"), ("ar", "s2")])
async def test_an_answer_of_which_a_part_is_lossy_is_lossy(ready: Paths, first: str, then: str) -> None:
    app = chat(ready, mode=first, max_tokens=12, ignore_eos=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(is_ready(app))
        await ask(app, STORY)
        begun = await answered(app)
        await command(app, f"/mode {then}")
        await pilot.press("ctrl+g")
        await soon(lambda: len(app.chats.open.entries[-1].text) > len(begun))
        await answered(app)
        assert app.chats.open.entries[-1].mode == "s2"
        assert "s2 ≈lossy · 12 tokens" in shown(app)
        await soon(lambda: rows(ready, MODE_OF_ANSWER) == [("s2",)])
    app.close()
    again = chat(ready)
    async with again.run_test(size=(100, 30)):
        await soon(lambda: "s2 ≈lossy · 12 tokens" in shown(again))
    again.close()


async def test_a_program_that_ends_while_an_answer_goes_on_lossily_has_stored_that(ready: Paths) -> None:
    app = chat(ready, max_tokens=12, ignore_eos=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(is_ready(app))
        await ask(app, STORY)
        await answered(app)
        await command(app, "/set max 2000")
        await command(app, "/mode s2")
        await pilot.press("ctrl+g")
        await soon(lambda: app.asker.has_text)
        assert rows(ready, MODE_OF_ANSWER) == [("s2",)]  # killed, it would find no time for that
        app.chats.close(app._last_words("interrupted"))
        assert rows(ready, MODE_OF_ANSWER) == [("s2",)]
    app.close()


class ReadingClient(StillClient):
    """Reads the prompt, until it is cancelled."""

    def __init__(self) -> None:
        self._cancelled = asyncio.Event()

    async def chat(self, *_: Any, **__: Any) -> AsyncGenerator[ChatChunk, None]:
        read = Timings(prompt_n=31, prompt_ms=9.0)
        yield ChatChunk(progress=Progress(31, 0, 8, 9.0), timings=read)
        await self._cancelled.wait()
        yield ChatChunk(finish="cancel", mode="s2", timings=read)

    async def cancel(self, _: str) -> bool:
        self._cancelled.set()
        return True


async def test_an_answer_that_went_on_by_nothing_keeps_its_mode_and_figures(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(still, "StillClient", ReadingClient)
    app: ChatApp = still.still(paths, monkeypatch)
    app.mode = "s2"
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(lambda: app.restored.is_set() and app.board.is_ready)
        entry = app.chats.open.entries[-1]
        before = (entry.text, "s2-exact", TIMINGS)
        assert (entry.text, entry.mode, entry.timings) == before
        await pilot.press("ctrl+g")
        await soon(lambda: app.asker.answer is not None and app.asker.answer.prefill.words)
        await pilot.press("escape")
        await soon(lambda: not app.is_answering)
        assert (entry.text, entry.mode, entry.timings) == before
        assert "■ stopped · s2-exact · 94 tokens" in shown(app)
    app.close()
    assert rows(paths, "SELECT mode FROM messages ORDER BY id DESC LIMIT 1") == [("s2-exact",)]


async def test_a_mode_that_is_not_offered_says_why(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test(size=(100, 30)):
        await soon(is_ready(app))
        before = app.mode
        await command(app, "/mode mtp")
        await soon(lambda: "mtp is not offered: it needs layers" in hint(app))
        assert app.mode == before
    app.close()
