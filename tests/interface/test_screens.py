"""The main screens, as they look: each is compared with a file of `screens/`, its text and its styles.

`S2CHAT_SCREENS=FOLDER pytest tests/interface/test_screens.py` writes the files anew, and each screen as a
picture into FOLDER: look at those before you commit the files.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from rich.style import Style
from still import SNAPSHOT, still
from support import showing, shown, soon, status
from textual.pilot import Pilot

from app.chat import ChatApp
from app.chatlist import ChatListScreen
from app.help import HelpScreen
from app.modellist import ModelScreen
from app.news import News
from app.setting import THEMES
from app.settinglist import SettingScreen
from engine.errors import EngineCrashed
from engine.paths import Paths

FILES = Path(__file__).with_name("screens")
PICTURES = os.environ.get("S2CHAT_SCREENS", "")
SIZES = [(60, 20), (80, 24), (160, 45)]
LOOKS = ("dark", "light", "NO_COLOR")


async def _answer(app: ChatApp, _: Pilot[None]) -> None:
    await soon(lambda: "thoughts" in shown(app))


async def _streaming(app: ChatApp, pilot: Pilot[None]) -> None:
    await pilot.press("ctrl+n")
    await soon(lambda: not app.chats.open.entries)
    app.prompt.text = "How does a lock lift a boat?"
    app.prompt._send()
    await soon(lambda: "length * width" in shown(app) and "tok/s" in status(app))
    app.prompt.insert("And then?")


async def _models(app: ChatApp, pilot: Pilot[None]) -> None:
    await pilot.press("ctrl+l")
    await soon(lambda: showing(app, ModelScreen) and not app.screen._finding and not app.screen._dirty)
    await pilot.press("down")


async def _settings(app: ChatApp, pilot: Pilot[None]) -> None:
    await pilot.press("f10")
    await soon(lambda: showing(app, SettingScreen) and app.screen._rows)


async def _help(app: ChatApp, pilot: Pilot[None]) -> None:
    await pilot.press("f1")
    await soon(lambda: showing(app, HelpScreen))


async def _chats(app: ChatApp, pilot: Pilot[None]) -> None:
    await pilot.press("ctrl+o")
    await soon(lambda: showing(app, ChatListScreen) and app.screen.rows)


async def _error(app: ChatApp, _: Pilot[None]) -> None:
    News(app).engine_problem(
        EngineCrashed(
            "the kernel ended the engine: it needed more memory than there is", hint="a smaller --budget"
        )
    )
    await soon(lambda: "▲" in shown(app))


SCREENS: dict[str, Callable[[ChatApp, Pilot[None]], Awaitable[None]]] = {
    "answer": _answer,
    "streaming": _streaming,
    "models": _models,
    "settings": _settings,
    "help": _help,
    "chats": _chats,
    "error": _error,
}


class Look:
    """A screen: its text, and for each kind of cell how many there are; `digest` says where they are."""

    def __init__(self, app: ChatApp) -> None:
        strips = app.screen._compositor.render_strips()
        self.text = "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)
        self.cells: Counter[str] = Counter()
        digest = hashlib.sha256()
        for strip in strips:
            for segment in strip.simplify():
                style = str((segment.style or Style()).clear_meta_and_links())
                self.cells[style] += segment.cell_length
                digest.update(f"{segment.cell_length} {style}\n".encode())
            digest.update(b"\n")
        self.digest = digest.hexdigest()[:12]

    def __str__(self) -> str:
        return "".join(f"  {count:5} {style}\n" for style, count in sorted(self.cells.items()))


async def _at_rest(app: ChatApp, pilot: Pilot[None]) -> Look:
    """The screen once nothing moves: text scrolls, and lists are drawn again when their size is known."""
    looks = [Look(app)]
    while len(looks) < 3 or len({found.text + found.digest for found in looks[-3:]}) > 1:
        await pilot.pause(0.1)
        looks.append(Look(app))
    return looks[-1]


async def look(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, screen: str, how: str, size: tuple[int, int]
) -> Look:
    if how == "NO_COLOR":
        monkeypatch.setenv("NO_COLOR", "1")
    app = still(paths, monkeypatch)
    time.tzset()
    async with app.run_test(size=size) as pilot:
        await soon(lambda: app.restored.is_set() and app.board.snapshot is SNAPSHOT)
        app.theme = THEMES.get(how, THEMES["dark"])
        await soon(lambda: "ctx 311" in status(app) or "ctx" not in status(app))
        await soon(lambda: "F1 keys" in Look(app).text)
        await _at_rest(app, pilot)  # a list that opens earlier lies over a screen that is not drawn yet
        await SCREENS[screen](app, pilot)
        found = await _at_rest(app, pilot)
        if PICTURES:
            Path(PICTURES).mkdir(parents=True, exist_ok=True)
            name = f"{screen}-{size[0]}x{size[1]}-{how}.svg"
            (Path(PICTURES) / name).write_text(app.export_screenshot())
    app.close()
    monkeypatch.delenv("NO_COLOR", raising=False)
    return found


@pytest.mark.parametrize("size", SIZES, ids=[f"{width}x{height}" for width, height in SIZES])
@pytest.mark.parametrize("screen", SCREENS)
async def test_a_screen_looks_as_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, screen: str, size: tuple[int, int]
) -> None:
    looks = {}
    for how in LOOKS:
        home = tmp_path / how
        paths = Paths(runtime=home / "run", state=home / "state", data=home / "data")
        looks[how] = await look(paths, monkeypatch, screen, how, size)
    for found in looks.values():
        assert found.text == looks["dark"].text, "colours change what is said"
    written = (
        looks["dark"].text
        + "\n"
        + "".join(f"\n{how} {found.digest}\n{found}" for how, found in looks.items())
    )
    file = FILES / f"{screen}-{size[0]}x{size[1]}.txt"
    if PICTURES:
        file.parent.mkdir(exist_ok=True)
        file.write_text(written)
    assert written == file.read_text()
