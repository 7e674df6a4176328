"""The settings in the chat: shown, changed, kept, and what they do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import chat, showing, shown, soon
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static

from app.chat import ChatApp
from app.setting import SETTINGS
from app.settinglist import SettingScreen
from app.settings import read_settings
from engine.paths import Paths
from engine.request import MODES

TEXT = '# mine\ntheme = "light" # bright\ncolour = 1\n'


def with_settings(paths: Paths, file: Path) -> ChatApp:
    app = chat(paths)
    app.options = replace(app.options, settings=read_settings(file))
    app.adjusting.settings = app.options.settings
    return app


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(TEXT)
    return path


async def opened(app: ChatApp, pilot: Pilot[None]) -> SettingScreen:
    await soon(app.restored.is_set)
    await pilot.press("f10")
    await soon(lambda: showing(app, SettingScreen))
    screen = app.screen
    assert isinstance(screen, SettingScreen)
    await soon(lambda: screen._rows)
    return screen


def go_to(screen: SettingScreen, key: str) -> None:
    at = next(at for at, row in enumerate(screen._rows) if row is not None and row.key == key)
    screen.query_one(OptionList).highlighted = at


def words(screen: SettingScreen) -> str:
    return str(screen.query_one(Static).content)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (160, 45)])
async def test_all_are_shown(paths: Paths, file: Path, size: tuple[int, int]) -> None:
    app = with_settings(paths, file)
    async with app.run_test(size=size) as pilot:
        await soon(lambda: app.theme == "textual-light")
        assert "line 3: colour is no setting" in shown(app).replace("\n ", "")
        screen = await opened(app, pilot)
        listing = screen.query_one(OptionList)
        text = "\n".join(str(listing.get_option_at_index(at).prompt) for at in range(listing.option_count))
        for setting in SETTINGS:
            assert setting.name in text
        assert "theme             light" in text
        assert "0.8 (default)" in text
        for said in ("the last one used", "by the plan", "no limit", "the one that ships"):
            assert f"{said} (default)" in text
        assert not [line for line in text.splitlines() if line.split()[1:2] in (["0"], ["-1"], ["–"])]
        assert "Counts at once" in words(screen)
        assert listing.max_scroll_x == 0
    app.close()


async def test_a_number_is_typed_refused_and_kept(paths: Paths, file: Path) -> None:
    app = with_settings(paths, file)
    app.options.request.pop("temperature")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        go_to(screen, "sampling.temperature")
        await pilot.press("enter")
        line = screen.query_one(Input)
        await soon(lambda: line.has_focus)
        await pilot.press(*"1000", "enter")
        await soon(lambda: "0 to 100" in words(screen))
        assert file.read_text() == TEXT
        line.value = "0.25"
        await pilot.press("enter")
        await soon(lambda: app.options.request.get("temperature") == 0.25 and not line.has_focus)
        assert read_settings(file).get("sampling.temperature") == 0.25
        assert file.read_text().startswith('# mine\ntheme = "light" # bright\n')
        await pilot.press("delete")
        await soon(lambda: "temperature" not in app.options.request)
        await pilot.press("enter")
        await soon(lambda: line.has_focus)
        await pilot.press("escape")  # leaves the line, not the screen
        assert isinstance(app.screen, SettingScreen)
        await pilot.press("escape")
        await soon(lambda: not isinstance(app.screen, SettingScreen))
    app.close()


async def test_a_choice_goes_round_and_counts_at_once(paths: Paths, file: Path) -> None:
    app = with_settings(paths, file)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: app.theme == "textual-light")
        screen = await opened(app, pilot)
        await pilot.press("enter")
        await soon(lambda: app.theme == "ansi-dark")
        await pilot.press("enter")
        await soon(lambda: app.theme == "textual-dark")
        assert read_settings(file).get("theme") == "dark"
        go_to(screen, "mode")
        await pilot.press("enter")
        await soon(lambda: read_settings(file).get("mode") == next(iter(MODES)))
        await pilot.press("escape")
        app.theme = "nord"  # as the palette does it
        await soon(lambda: read_settings(file).get("theme") == "nord")
    app.close()
    assert "# bright" in file.read_text()


async def test_a_file_that_cannot_be_written_is_said(paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    app = with_settings(paths, tmp_path / "none.toml")
    app.adjusting.settings = replace(app.adjusting.settings, path=tmp_path / "file" / "settings.toml")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("enter")
        await soon(lambda: "Not a directory" in words(screen))
        assert app.theme == "textual-dark"
    app.close()
