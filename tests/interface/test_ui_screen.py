"""What the screen shows at any size, and that untrusted text stays text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.segment import Segment
from support import Glass, chat, showing, shown, soon, status
from test_ui_chat import LONG, answered, ask, is_ready
from test_ui_keeping import stored
from textual.geometry import Offset

from app.board import Board
from app.chat import ChatApp
from app.choice import Choice, ChoiceScreen, LineScreen
from app.comparescreen import CompareScreen
from app.comparison import Comparison
from app.help import HelpScreen
from app.labels import ModeLabel
from app.message import Message
from app.modellist import ModelScreen
from app.news import News
from app.servermodels import ServerModelScreen
from app.statusline import Status, _fit
from engine.errors import EngineCrashed
from engine.events import Timings
from engine.messages import ChatChunk
from engine.paths import Paths

SIZES = [(60, 20), (80, 24), (160, 45)]
HOSTILE = [
    "[/]",
    "[bold",
    "[b +",
    "x[i]=[/p]",
    "[red]x[/red]",
    "[@click=app.quit]x[/]",
    "a\x1b[2Jb\x1b]0;t\x07c",
]


def screen_lines(app: ChatApp) -> list[str]:
    """The cells a terminal would show, row by row."""
    strips = app.screen._compositor.render_strips()
    return ["".join(segment.text for segment in strip) for strip in strips]


@pytest.mark.parametrize("size", SIZES)
async def test_everything_has_its_place(ready: Paths, size: tuple[int, int]) -> None:
    app = chat(ready)
    async with app.run_test(size=size) as pilot:
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        await answered(app)
        lines = screen_lines(app)
        assert len(lines) == size[1]
        assert lines[0].startswith("┃ Name a colour.")
        assert lines[-4].startswith(" ● ready")
        assert "tok/s" in lines[-4]
        assert "ctx" in lines[-4]
        assert "F1 keys" in lines[-1]
        await pilot.press("f1")
        await soon(lambda: showing(app, HelpScreen))
        await pilot.pause()
        text = "\n".join(screen_lines(app))
        assert "stop the answer" in text
        assert "Esc closes" in text
        await pilot.press("escape")
        await soon(lambda: len(app.screen_stack) == 1)
    app.close()


@pytest.mark.parametrize("text", HOSTILE)
async def test_untrusted_text_is_shown_as_it_is(paths: Paths, text: str) -> None:
    safe = text if "\x1b" not in text else "abc"
    stored(paths, (f"q {text}", f"a {text}"))
    app = chat(paths)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(lambda: f"q {safe}" in shown(app))
        assert f"a {safe}" in shown(app)
        News(app).engine_problem(EngineCrashed(f"e {text}", hint=f"h {text}"))
        assert f"e {safe}" in status(app)
        app.hint(f"n {text}")
        await pilot.pause()
        assert f"e {safe}" in shown(app)
        assert f"h {safe}" in shown(app)
        assert app.is_running
        assert "\x1b" not in "".join(screen_lines(app))
        await pilot.press("ctrl+n")
        await pilot.press("ctrl+o")
        await soon(lambda: len(app.screen_stack) == 2)
        await pilot.pause()
        assert f"q {safe}" in "\n".join(screen_lines(app))
    app.close()


@pytest.mark.parametrize("text", HOSTILE)
async def test_names_are_shown_as_they_are_wherever_they_stand(
    ready: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Frames, lists, lines to type in and what is suggested there: of files, presets, models and servers."""
    name = f"n {text}".replace("/", "%")
    safe = name if "\x1b" not in text else "n a"  # what follows an escape may be shown, without the escape
    (tmp_path / name).write_text("text")
    monkeypatch.chdir(tmp_path)
    app = chat(ready)

    async def said(_: Mapping[str, Any]) -> AsyncGenerator[ChatChunk, None]:
        yield ChatChunk(text=name, finish="eos")

    async with app.run_test(size=(120, 40)) as pilot:
        await soon(is_ready(app))
        await app.opening.attach(tmp_path / name)
        await soon(lambda: safe in "\n".join(screen_lines(app)))
        await app.opening.ask_file("Attach", name, "attach")
        await pilot.press("n")
        await soon(lambda: "\n".join(screen_lines(app)).count(safe) >= 2)
        await pilot.press("escape")
        screens = (
            LineScreen(name, name, said=name),
            ChoiceScreen(name, [Choice(name, name, name)], name),
            ServerModelScreen(name, [name, "other"], name, str, "n"),
            ModelScreen(lambda: iter(()), app.picking.downloads, None, str, name),
            CompareScreen(name, Comparison(said, ("ar", "ar")), (name, name)),
        )
        for screen in screens:
            await app.push_screen(screen)
            await soon(lambda: safe in "\n".join(screen_lines(app)))
            assert "\x1b" not in "".join(screen_lines(app))
            await pilot.press("escape")
        assert app.is_running
    app.close()


def test_a_narrow_status_line_drops_the_least_important() -> None:
    timings = Timings(predicted_n=50, predicted_ms=1000, draft_n=30, draft_n_accepted=21, verify_n=14)
    full = Status("answering", "answering", "SmolMoE", ModeLabel("s2", exact=False), timings, 812, 4096)
    assert _fit(full, 200).plain == (
        "▶ answering │ SmolMoE │ s2 ≈lossy │ 50 tok/s │ acc 70% │ 2.5/pass │ ctx 812/4096"
    )
    assert _fit(full, 60).plain == "▶ answering │ s2 ≈lossy │ 50 tok/s │ acc 70% │ ctx 812/4096"
    assert _fit(full, 56).plain == "▶ answering │ s2 ≈lossy │ 50 tok/s │ ctx 812/4096"
    assert _fit(full, 26).plain == "▶ answering │ s2 ≈lossy"
    assert _fit(full, 3).plain == "▶ answering"


def test_numbers_that_do_not_exist_are_not_made_up() -> None:
    plain = Timings(predicted_n=50, predicted_ms=1000, verify_n=50)
    text = _fit(Status("ready", "ready", timings=plain), 200).plain
    assert text == "● ready │ 50 tok/s │ acc – │ 1.0/pass"
    assert _fit(Board().status(None, False, None), 80).plain == "◌ starting the engine"


async def test_the_view_follows_unless_the_user_scrolled_up(ready: Paths) -> None:
    app = chat(ready, **LONG)
    async with app.run_test(size=(60, 20)) as pilot:
        await soon(is_ready(app))
        await ask(app, "Tell me a long story.")
        await soon(lambda: app.transcript.max_scroll_y > 5)
        assert app.transcript.scroll_offset.y == app.transcript.max_scroll_y
        await pilot.press("pageup")
        place = app.transcript.scroll_offset.y
        lines = len(app.transcript._lines)
        await soon(lambda: len(app.transcript._lines) > lines + 3)
        assert app.transcript.scroll_offset.y == place
        await pilot.press("ctrl+end")
        lines = len(app.transcript._lines)
        await soon(lambda: len(app.transcript._lines) > lines + 3)
        assert app.transcript.scroll_offset.y == app.transcript.max_scroll_y
        await pilot.press("escape")
        await answered(app)
    app.close()


@pytest.mark.parametrize("size", [(20, 8), (30, 6), (80, 9)])
async def test_what_is_typed_shows_on_the_lowest_screen(paths: Paths, size: tuple[int, int]) -> None:
    app = chat(paths)
    async with app.run_test(size=size) as pilot:
        await pilot.press(*"hello")
        await soon(lambda: any("hello" in line for line in screen_lines(app)))
    app.close()


def bar_cells(app: ChatApp) -> tuple[float, float]:
    """Where the scroll bar's thumb starts and how long it is, in cells."""
    bar, height = app.transcript.vertical_scrollbar, app.transcript.size.height
    total = max(height, bar.window_virtual_size)
    return height * bar.position / total, height * height / total


async def test_the_scroll_bar_shows_the_place_while_text_arrives(paths: Paths) -> None:
    app = chat(paths)
    async with app.run_test(size=(80, 24)) as pilot:
        message = Message("assistant", "")
        app.transcript.add(message)
        for _ in range(60):
            message.append("One more paragraph.\n\n")
            app.transcript.redraw(message)
            start, length = bar_cells(app)
            height, total = app.transcript.size.height, len(app.transcript._lines)
            assert length == pytest.approx(height * height / max(height, total), abs=0.5)
            assert start + length == pytest.approx(height, abs=1)
        app.action_scroll_home()
        await pilot.pause()
        assert bar_cells(app)[0] == 0
    app.close()


async def test_keys_and_help_work_while_text_streams(ready: Paths) -> None:
    app = chat(ready, **LONG)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        await ask(app, "Tell me a long story.")
        await soon(lambda: app.asker.has_text)
        await pilot.press("f1")
        await soon(lambda: showing(app, HelpScreen))
        length = len(app.asker.answer.text) if app.asker.answer else 0
        await soon(lambda: app.asker.answer is None or len(app.asker.answer.text) > length + 50)
        await pilot.press("escape")
        assert app.is_answering  # closing the help is not stopping the answer
        await pilot.press("x")
        assert app.prompt.text == "x"
        await pilot.press("escape")
        await answered(app)
    app.close()


async def test_resizing_wraps_anew_and_keeps_the_end_in_view(ready: Paths) -> None:
    stored(ready, *[(f"question {number}", "some words " * 60 + f"[end {number}]") for number in range(8)])
    app = chat(ready)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(lambda: "[end 7]" in shown(app))
        for width in (200, 40, 1, 13, 60):
            await pilot.resize_terminal(width, 20)
        await soon(lambda: app.transcript._drawn_width == app.transcript._text_width)
        assert max(len(line) for line in shown(app).splitlines()) <= 60
        assert app.transcript.scroll_offset.y == app.transcript.max_scroll_y
        await soon(lambda: any("[end 7]" in line for line in screen_lines(app)))
    app.close()


async def test_a_long_chat_is_drawn_in_pages(ready: Paths) -> None:
    stored(ready, *[(f"question {number}", f"answer {number}") for number in range(60)])
    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: "answer 59" in shown(app))
        assert "question 0\n" not in shown(app)
        for _ in range(4):
            await pilot.press("ctrl+home")
            await pilot.pause()
        assert "question 0\n" in shown(app)
        assert "answer 59" in shown(app)
    app.close()


async def test_text_can_be_selected_with_the_mouse(ready: Paths) -> None:
    stored(ready, ("question", "first words here\nsecond line"))
    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: "second line" in shown(app))
        row = shown(app).splitlines().index("  first words here")
        await pilot.mouse_down(offset=Offset(2, row))
        await pilot.hover(offset=Offset(8, row + 1))
        await pilot.mouse_up(offset=Offset(8, row + 1))
        selected = app.screen.get_selected_text()
        assert selected is not None
        assert selected.startswith("first words here")
        assert selected.strip().endswith(("secon", "second"))
        await pilot.press("ctrl+c")
        assert app.clipboard == selected
    app.close()


def segments_of(app: ChatApp) -> list[Segment]:
    return [segment for strip in app.screen._compositor.render_strips() for segment in strip]


def coloured(app: ChatApp) -> list[str]:
    """Texts that would be sent with a colour."""
    return [text for text, style, _ in segments_of(app) if style and (style.color or style.bgcolor)]


def marked(app: ChatApp, attribute: str) -> str:
    """The text with an attribute such as "reverse"."""
    return "".join(text for text, style, _ in segments_of(app) if style and getattr(style, attribute))


async def test_without_colours_everything_can_still_be_told_apart(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stored(paths, ("earlier", "answer"))
    stored(paths, ("question", "answer with `code`\n\n```python\nprint(1)\n```\n> quote"))
    app = chat(paths)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: "answer" in shown(app))
        app.theme = "nord"
        app.hint("a hint")
        await pilot.press("a", "b", "shift+left")
        await soon(lambda: "b" in marked(app, "reverse"))
        assert coloured(app) == []
        lines = screen_lines(app)
        assert lines[0].startswith("┃ question")
        assert lines[2].startswith("  answer")
        await pilot.press("ctrl+o")
        await soon(lambda: "earlier" in marked(app, "underline"))
        assert coloured(app) == []
        await pilot.press("escape", "f1")
        await soon(lambda: showing(app, HelpScreen))
        assert coloured(app) == []
        await pilot.press("escape", "ctrl+p")
        await soon(lambda: "Ask again" in "\n".join(screen_lines(app)))
        await pilot.press("down")
        await soon(lambda: "Attach a text file" in marked(app, "underline"))
        assert coloured(app) == []
    app.close()


async def test_wide_characters_fill_their_cells(ready: Paths) -> None:
    text = "猫 こんにちは 〽️ 👩‍👩‍👧 🇫🇷 é עברית " * 6
    stored(ready, (text, text))
    app = chat(ready)
    async with app.run_test(size=(61, 20)):
        await soon(lambda: "猫" in shown(app))
        for line in app.transcript._lines:
            assert Segment.get_line_length(line) <= 60
        for strip in app.screen._compositor.render_strips():
            assert strip.cell_length == 61
    app.close()


async def test_a_notice_is_not_hidden_by_the_chat_that_opens(paths: Paths) -> None:
    app = chat(paths)
    app.notice("early [notice]")
    async with app.run_test():
        await soon(lambda: "▲ early [notice]" in shown(app))
    app.close()


async def test_redrawing_one_message_leaves_others_alone(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test(size=(80, 24)):
        await soon(lambda: app.restored.is_set())
        first, second = Message("user", "one"), Message("assistant", "two")
        app.transcript.load([first, second])
        second.append(" more")
        app.transcript.redraw(second)
        first.foot = "foot"
        app.transcript.redraw(first)
        await asyncio.sleep(0)
        assert shown(app).splitlines() == ["┃ one", "  foot", "", "  two more"]
        app.transcript.take_out(first)
        assert shown(app).splitlines() == ["  two more"]
    app.close()


async def test_nothing_of_a_longer_chat_stays_on_the_screen(paths: Paths) -> None:
    stored(paths, ("short question", "short answer"))
    stored(paths, *[(f"long question {number}", f"long answer {number}") for number in range(3)])
    app = chat(paths)
    async with app.run_test(size=(80, 30)) as pilot:
        await soon(lambda: "long answer 2" in shown(app))
        glass = Glass(app)
        await soon(lambda: "long answer 2" in glass.text)
        app.transcript.take_out(app.transcript.messages[0])
        await soon(lambda: "long question 0" not in glass.text)
        assert glass.text.count("long answer 2") == 1
        await pilot.press("ctrl+o")
        await soon(lambda: len(app.screen_stack) == 2)
        await pilot.press("enter")
        await soon(lambda: "short answer" in glass.text and len(app.screen_stack) == 1)
        await soon(lambda: "long" not in glass.text)
        await pilot.press("ctrl+n")
        await soon(lambda: "F1 shows the keys" in glass.text)
        assert "short" not in glass.text
    app.close()


@pytest.mark.parametrize("size", SIZES)
async def test_a_hint_covers_nothing_of_the_answer(ready: Paths, size: tuple[int, int]) -> None:
    stored(ready, ("question", "\n".join(f"{'x' * 50}{number}  " for number in range(30))))
    app = chat(ready)
    async with app.run_test(size=size) as pilot:
        await soon(is_ready(app))
        glass = Glass(app)
        await soon(lambda: "x29" in glass.text)
        before = glass.text.splitlines()
        for key, words in (("ctrl+y", "Copied"), ("ctrl+t", "=exact:"), ("ctrl+c", "so does Ctrl+Q.")):
            await pilot.press(key)
            await soon(lambda words=words: words in glass.text.splitlines()[-4])  # type: ignore[misc]
            app.refresh_status()
            await pilot.pause()
            lines = glass.text.splitlines()
            assert words in lines[-4]
            assert [*lines[:-4], *lines[-3:]] == [*before[:-4], *before[-3:]]
        await soon(lambda: "● ready" in glass.text.splitlines()[-4])
    app.close()
