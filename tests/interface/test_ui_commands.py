"""What Ctrl+P offers, and that all of it works."""

from __future__ import annotations

import pytest
from support import chat, rows, showing, shown, soon
from test_ui_keeping import stored
from test_ui_screen import screen_lines
from textual.command import CommandPalette
from textual.pilot import Pilot

from app.chat import ChatApp
from app.chatlist import ChatListScreen
from app.help import HelpScreen
from engine.paths import Paths


async def palette(app: ChatApp, pilot: Pilot[None], words: str = "") -> CommandPalette:
    """Opens the palette and types `words`."""
    await pilot.press("ctrl+p")
    await soon(lambda: showing(app, CommandPalette))
    await pilot.press(*words)
    screen = app.screen
    assert isinstance(screen, CommandPalette)
    await soon(lambda: offered(screen) and words in offered(screen)[0].lower())
    return screen


def offered(screen: CommandPalette) -> list[str]:
    options = screen.query_one("CommandList").options  # type: ignore[attr-defined]
    return [str(option.prompt).partition("\n")[0] for option in options]


async def test_only_what_makes_sense_here_is_offered(paths: Paths) -> None:
    app = chat(paths)
    async with app.run_test(size=(80, 40)) as pilot:
        await soon(app.restored.is_set)
        screen = await palette(app, pilot)
        names = [command.title for command in app.get_system_commands(app.screen)]
        await soon(lambda: len(offered(screen)) == len(names))
        assert offered(screen) == sorted(names)
        assert not {"Maximize", "Screenshot", "Minimize"} & set(names)
    app.close()


async def test_it_does_not_open_on_top_of_a_list_or_the_help(paths: Paths) -> None:
    app = chat(paths)
    async with app.run_test(size=(80, 40)) as pilot:
        await soon(app.restored.is_set)
        await pilot.press("f1")
        await soon(lambda: showing(app, HelpScreen))
        await pilot.press("ctrl+p")
        assert isinstance(app.screen, HelpScreen)
    app.close()


@pytest.mark.parametrize(
    ("words", "screen"), [("keys", HelpScreen), ("open", ChatListScreen), ("new", None), ("quit", None)]
)
async def test_a_command_does_what_its_key_does(paths: Paths, words: str, screen: type | None) -> None:
    stored(paths, ("first question", "first answer"))
    stored(paths, ("second question", "second answer"))
    app = chat(paths)
    async with app.run_test(size=(80, 40)) as pilot:
        await soon(lambda: "second answer" in shown(app))
        await palette(app, pilot, words)
        await pilot.press("enter")
        if words == "new":
            await soon(lambda: "second answer" not in shown(app))
        elif words == "quit":
            await soon(lambda: not app.is_running)
        else:
            await soon(lambda: screen is not None and showing(app, screen))
            await pilot.press("escape")
            await soon(lambda: len(app.screen_stack) == 1)
    app.close()


@pytest.mark.parametrize("width", [60, 80, 160])
async def test_a_stroke_alone_names_commands_and_where_all_are(paths: Paths, width: int) -> None:
    app = chat(paths)
    async with app.run_test(size=(width, 24)) as pilot:
        await soon(app.restored.is_set)
        await pilot.press("/")
        await soon(lambda: any("/again /continue" in line for line in screen_lines(app)))
        (line,) = (line for line in screen_lines(app) if "/again" in line)
        assert "… F1 shows all ─" in line
        assert line.index("… F1") > width - 40
    app.close()


async def test_a_chosen_theme_is_remembered(paths: Paths) -> None:
    app = chat(paths)
    async with app.run_test() as pilot:
        await soon(app.restored.is_set)
        await palette(app, pilot, "colours")
        app.screen.dismiss()
        app.theme = "nord"
        await soon(lambda: rows(paths, "SELECT value FROM settings WHERE key = 'theme'") == [("nord",)])
    app.close()
    again = chat(paths)
    async with again.run_test():
        await soon(lambda: again.theme == "nord")
    again.close()
