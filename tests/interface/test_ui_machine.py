"""The machine panel: opened and left, figures while an answer streams, switches that count."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support import chat, hint, showing, shown, soon
from test_ui_chat import LONG, answered, ask, is_ready
from test_ui_screen import coloured, screen_lines
from textual.pilot import Pilot
from textual.widgets import Input
from toys import budget_with

from app.chat import ChatApp
from app.choice import LineScreen
from app.machine import MachinePanel
from app.sheet import Sheet
from engine.machine.live import Live
from engine.machine.reading import Reading
from engine.model import read_model_info
from engine.paths import EMBEDDED_MODEL, Paths

USED = read_model_info(EMBEDDED_MODEL).n_expert_used
SIZES = [(60, 20), (80, 24), (160, 45)]


async def opened(app: ChatApp, pilot: Pilot[None]) -> MachinePanel:
    await soon(is_ready(app))
    await pilot.press("f12")
    await soon(lambda: isinstance(app.stage.panel, MachinePanel))
    panel = app.stage.panel
    assert isinstance(panel, MachinePanel)
    await soon(lambda: panel._found and panel._machine)
    await soon(lambda: panel.sheet.has_focus)
    return panel


def line(panel: MachinePanel, name: str) -> str:
    """The row that begins so."""
    return next(text for text in panel.sheet.text.splitlines() if text.startswith(name))


def why(panel: MachinePanel) -> str:
    return str(panel._why.content)


def go_to(panel: MachinePanel, name: str) -> None:
    panel.sheet._choose([row.name for row in panel.sheet._rows].index(name))


@pytest.mark.parametrize("size", SIZES)
async def test_it_opens_beside_the_chat_or_in_its_place(ready: Paths, size: tuple[int, int]) -> None:
    app = chat(ready)
    async with app.run_test(size=size) as pilot:
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        await answered(app)
        panel = await opened(app, pilot)
        await pilot.pause()
        text = "\n".join(screen_lines(app))
        wide = size[0] >= 110
        assert ("┃ Name a colour." in text) is wide
        assert "╭─ Machine" in text
        assert "draft experts" in text
        assert "F12 closes" in text
        assert "▸ mode" in text
        assert "● ready" in text, "status line and prompt stay"
        assert "F1 keys" in text
        for _ in panel.sheet._rows:  # all rows can be reached, and each says why
            chosen = panel.sheet.chosen
            assert chosen is not None
            assert chosen.why or "n/a" in str(chosen.pieces), chosen
            await pilot.press("down")
        assert panel.sheet.chosen is panel.sheet._rows[-1]
        assert all(len(strip) == size[0] for strip in screen_lines(app))
        await pilot.press("f12")
        await soon(lambda: app.stage.panel is None and app.prompt.has_focus)
        await soon(lambda: "┃ Name a colour." in "\n".join(screen_lines(app)))
    app.close()


async def test_esc_gives_the_keys_back_and_then_stops_the_answer(ready: Paths) -> None:
    app = chat(ready, **LONG)
    async with app.run_test(size=(160, 45)) as pilot:
        await opened(app, pilot)
        await pilot.press("escape")
        await soon(lambda: app.prompt.has_focus)
        assert app.stage.panel is not None, "there is room for it"
        await pilot.press(*"tell", "enter")
        await soon(lambda: app.asker.has_text)
        await pilot.press("escape")
        await answered(app)
        await pilot.press("f12", "f12")
        await soon(lambda: app.stage.panel is not None and app.stage.panel.has_focus_within)
        await pilot.resize_terminal(80, 24)
        await soon(lambda: not app.transcript.display)
        await pilot.press("escape")
        await soon(lambda: app.stage.panel is None and app.transcript.display)
        assert app.prompt.has_focus
    app.close()


async def test_choosing_a_message_brings_the_transcript_back(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        await answered(app)
        await opened(app, pilot)
        app.prompt.focus()
        await pilot.press("tab")
        await soon(lambda: app.stage.panel is None and app.turns.chosen is not None)
        assert app.transcript.has_focus
        await pilot.press("f12")
        await soon(lambda: app.stage.panel is not None and app.stage.panel.has_focus_within)
        assert app.turns.chosen is None
    app.close()


async def test_figures_move_while_an_answer_streams(ready: Paths) -> None:
    app = chat(ready, mode="s2-exact", **LONG)
    async with app.run_test(size=(160, 45)) as pilot:
        panel = await opened(app, pilot)
        assert app.link.pid is not None
        assert "–" in line(panel, "speed")
        await ask(app, "Tell me a long story.")
        await soon(lambda: len(panel._trend.speed) >= 3)
        assert "tok/s" in line(panel, "speed")
        assert any(character in line(panel, "speed") for character in "▂▃▄▅▆▇█")
        assert "engine on" in line(panel, "CPU")
        found = panel._found
        assert found["engine.cpus"].value > 0.01
        assert 50 << 20 < found["engine.memory"].value < 4 << 30
        await soon(lambda: found is not panel._found)
        text = line(panel, "engine")
        assert "MiB, no limit" in text
        assert app.is_answering
        await pilot.press("escape", "escape")
        await answered(app)
        seen = len(panel._trend.speed)
        assert app.stage.panel is panel
        await soon(lambda: len(panel._trend.memory) > seen + 1)
        assert len(panel._trend.speed) <= seen + 1, "without an answer nothing is added"
    app.close()


async def test_figures_of_an_answer_stay_in_its_chat(ready: Paths) -> None:
    app = chat(ready, mode="s2-exact", **LONG)
    async with app.run_test(size=(160, 45)) as pilot:
        panel = await opened(app, pilot)
        await ask(app, "Tell me a long story.")
        await soon(lambda: len(panel._trend.speed) >= 2)
        await pilot.press("escape", "escape")
        await answered(app)
        assert "tok/s" in line(panel, "speed")
        assert line(panel, "written in").endswith("s2-exact =exact")
        await pilot.press("ctrl+n")
        await soon(lambda: line(panel, "speed").split() == ["speed", "–"])
        assert line(panel, "written in").endswith("–")
        assert "%" in line(panel, "of budget")
    app.close()


async def test_with_experts_on_disk_hits_and_reads_are_shown(paths: Paths) -> None:
    budget = budget_with(0.4, 1024)
    app = chat(paths, mode="s2-exact", n_ctx=1024, **LONG)
    app.options = replace(app.options, load=replace(app.options.load, budget=f"{budget}M"))
    async with app.run_test(size=(160, 45)) as pilot:
        panel = await opened(app, pilot)
        await ask(app, "Tell me a long story.")
        await soon(lambda: "%" in line(panel, "hit"))
        await soon(lambda: "MiB/tok" in line(panel, "read"))
        assert "MiB in memory" in line(panel, "experts")
        assert f"of {budget} MiB" in line(panel, "engine")
        assert "%" in line(panel, "of budget")
        assert f"{budget} MiB" in line(panel, "budget")
        await app.asker.stop()
        await answered(app)
        assert "%" in line(panel, "hit"), "of the whole answer now"
    app.close()


async def test_what_is_typed_goes_to_the_prompt(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        panel = await opened(app, pilot)
        await pilot.press(*"just")
        assert app.prompt.text == "just"
        assert app.prompt.has_focus
        assert app.stage.panel is panel
        assert panel.sheet.chosen is not None
        assert panel.sheet.chosen.name == "mode"
        await pilot.press("escape")
        await soon(lambda: app.stage.panel is None)
        assert app.prompt.text == "just"
    app.close()


async def test_it_looks_no_more_than_twice_a_second_and_only_while_open(
    ready: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    look = Live.look

    def counted(live: Live, *given: Any) -> dict[str, Reading]:
        looks.append(time.monotonic())
        return look(live, *given)

    monkeypatch.setattr(Live, "look", counted)
    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(app, pilot)
        await soon(lambda: len(looks) >= 4)
        assert min(later - one for one, later in pairwise(looks)) >= 0.5
        await pilot.press("f12")
        await soon(lambda: app.stage.panel is None)
        count = len(looks)
        await pilot.pause(1.5)
        assert len(looks) == count
    app.close()


async def test_switches_count(ready: Paths) -> None:
    app = chat(ready, mode="s2-exact", max_tokens=8)
    async with app.run_test(size=(80, 24)) as pilot:
        panel = await opened(app, pilot)
        client = await app.link.client()
        await client.settings(draft_experts=2)  # it may have been measured here
        await pilot.press("right")
        await soon(lambda: app.mode == "ngram")
        assert "ngram =exact" in line(panel, "mode")
        assert "next answer" in line(panel, "mode")
        await pilot.press("left")
        await soon(lambda: app.mode == "s2-exact")
        await pilot.press("down", "right", "right")
        await soon(lambda: f"4 of {USED}" in line(panel, "draft experts"))
        assert "never the text" in why(panel)
        await pilot.press("left", "down", "left")
        await soon(lambda: f"3 of {USED}" in line(panel, "draft experts"))
        await soon(lambda: "‹ 7" in line(panel, "draft length"))
        settings = await client.settings()
        assert (settings.draft_experts, settings.draft_length) == (3, 7)
        await ask(app, "Name a colour.")
        await answered(app)
        entry = app.chats.open.last_answer
        assert entry is not None
        assert entry.mode == "s2-exact"
        for _ in range(4):
            await pilot.press("up")
        await pilot.press("down", *["right"] * USED)
        await soon(lambda: f"{USED} of {USED}" in line(panel, "draft experts"))
        assert f"from 1 to {USED}" in why(panel)
        await client.settings(draft_experts=2, draft_length=8)  # the engine is shared
    app.close()


async def test_what_the_command_line_said_of_drafts_gives_way(ready: Paths) -> None:
    app = chat(ready, mode="s2-exact", draft_experts=5)
    async with app.run_test(size=(80, 24)) as pilot:
        panel = await opened(app, pilot)
        assert f"5 of {USED}" in line(panel, "draft experts")
        await pilot.press("down", "left")
        await soon(lambda: f"4 of {USED}" in line(panel, "draft experts"))
        assert "draft_experts" not in app.options.request
        await (await app.link.client()).settings(draft_experts=2)
    app.close()


async def test_the_budget_is_asked_for_and_counts_at_once(ready: Paths) -> None:
    app = chat(ready, **LONG)
    async with app.run_test(size=(80, 24)) as pilot:
        panel = await opened(app, pilot)
        await ask(app, "Tell me a long story.")
        await soon(lambda: app.asker.has_text)
        go_to(panel, "budget")
        for wish, words in (
            ("1K", "is too small"),
            ("nonsense", "is no budget"),
            ("2G", "2.0 GiB for the eng"),
        ):
            await pilot.press("enter")
            await soon(lambda: showing(app, LineScreen))
            app.screen.query_one(Input).value = wish
            await pilot.press("enter")
            await soon(lambda words=words: words in why(panel))  # type: ignore[misc]
        await soon(lambda: "2.0 GiB" in line(panel, "budget"))
        await soon(lambda: "of 2.0 GiB" in line(panel, "engine"))
        assert app.is_answering, app.chats.open.last_answer
        await app.tuning.budget("max")
        await app.asker.stop()
        await answered(app)
    app.close()


async def test_a_look_that_hangs_marks_figures_and_holds_nothing_up(
    ready: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = chat(ready, **LONG)
    async with app.run_test(size=(160, 45)) as pilot:
        panel = await opened(app, pilot)
        await soon(lambda: "▲old" not in line(panel, "memory"))
        hang = [True]
        look = Live.look

        def stuck(live: Live, *given: Any) -> dict[str, Reading]:
            while hang[0]:
                time.sleep(0.05)
            return look(live, *given)

        monkeypatch.setattr(Live, "look", stuck)
        await ask(app, "Tell me a long story.")
        await soon(lambda: "▲old" in line(panel, "memory"))
        assert "does not answer" in next(row.why for row in panel.sheet._rows if row.name == "memory")
        await soon(lambda: app.asker.has_text)
        length = len(shown(app))
        await soon(lambda: len(shown(app)) > length, 10)
        hang[0] = False
        await soon(lambda: "▲old" not in line(panel, "memory"))
        await pilot.press("escape", "escape")
        await answered(app)
    app.close()


async def test_without_an_engine_it_says_so(paths: Paths, tmp_path: Path) -> None:
    app = chat(paths, model=tmp_path / "missing.gguf")
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: app.restored.is_set() and app.board.words)
        await pilot.press("f12")
        await soon(lambda: isinstance(app.stage.panel, MachinePanel))
        panel = app.stage.panel
        assert isinstance(panel, MachinePanel)
        await soon(lambda: panel._found)
        assert "no model is loaded" in panel.sheet.text
        await pilot.press("right", "down", "enter")
        await soon(lambda: " free" in line(panel, "memory"))
    app.close()


async def test_by_name_and_without_colours(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    app = chat(paths)
    async with app.run_test(size=(120, 30)) as pilot:
        await soon(app.restored.is_set)
        app.prompt.text = "/machine"
        app.prompt._send()
        await soon(lambda: isinstance(app.stage.panel, MachinePanel))
        await soon(lambda: "▸" in "\n".join(screen_lines(app)))
        assert coloured(app) == []
        assert not hint(app)
        await pilot.press("f12")
        await soon(lambda: app.stage.panel is None)
    app.close()


async def test_rows_are_text_whatever_they_say(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def hostile(_: Live, *__: Any) -> dict[str, Reading]:
        return {"throttled": Reading("[red]x[/]\x1b[2J", "\x1b]0;t\x07[@click=app.quit]y[/]")}

    monkeypatch.setattr(Live, "look", hostile)
    app = chat(paths)
    async with app.run_test(size=(120, 30)) as pilot:
        await soon(app.restored.is_set)
        await pilot.press("f12")
        panel = app.stage.panel
        assert isinstance(panel, MachinePanel)
        await soon(lambda: "[red]x[/]" in line(panel, "throttled"))
        assert "\x1b" not in panel.sheet.text
        go_to(panel, "throttled")
        await soon(lambda: "[@click=app.quit]y[/]" in why(panel))
        assert "\x1b" not in "\n".join(screen_lines(app))
    app.close()


async def test_a_row_is_chosen_and_turned_by_mouse(ready: Paths) -> None:
    app = chat(ready, mode="ar")
    async with app.run_test(size=(80, 24)) as pilot:
        panel = await opened(app, pilot)
        await pilot.click(Sheet, offset=(5, 3))
        assert panel.sheet.chosen is not None
        assert panel.sheet.chosen.name == "draft_length"
        assert "Counts from the next answer" in why(panel)
        await pilot.click(Sheet, offset=(5, 3))
        await soon(lambda: "from 0 to 31" in why(panel))
        await pilot.click(Sheet, offset=(5, 0))  # a heading
        assert panel.sheet.chosen.name == "draft_length"
    app.close()
