"""The list of models in the chat: chosen, filtered, explained, fetched, while the chat stays."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hubserver import Hub, serving
from support import chat, hint, showing, shown, soon, status
from test_fetch import DATA, NAME, part_of
from test_ui_chat import answered, ask, is_ready
from textual.pilot import Pilot
from textual.widgets import Input, OptionList, Static
from toys import copy_embedded, file_of_experts, write_llama

from app import fetch
from app.chat import ChatApp
from app.fetch import leftovers
from app.modellist import ModelScreen
from app.settings import Settings, read_settings
from engine.model import read_model_info
from engine.paths import EMBEDDED_MODEL, Paths

EMBEDDED = read_model_info(EMBEDDED_MODEL).name


@pytest.fixture(autouse=True)
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in which no other tool keeps models."""
    for name in ("HF_HUB_CACHE", "HF_HOME", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / ".cache"))
    monkeypatch.setattr(fetch, "_WAIT_S", 0.01)
    return tmp_path / "home"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub()) as hub:
        hub.files = {"m-Q4_K_M.gguf": DATA}
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


async def opened(app: ChatApp, pilot: Pilot[None]) -> ModelScreen:
    await soon(app.restored.is_set)
    await pilot.press("ctrl+l")
    await soon(lambda: showing(app, ModelScreen))
    screen = app.screen
    assert isinstance(screen, ModelScreen)
    await soon(lambda: not screen._finding and not screen._dirty)
    return screen


def lines(screen: ModelScreen) -> list[str]:
    listing = screen.query_one(OptionList)
    return [str(listing.get_option_at_index(at).prompt) for at in range(listing.option_count)]


def details(screen: ModelScreen) -> str:
    return str(screen.query_one(Static).content)


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (160, 45)])
async def test_every_model_with_its_state(paths: Paths, house: Path, size: tuple[int, int]) -> None:
    folder = house / ".lmstudio/models/a/b"
    folder.mkdir(parents=True)
    write_llama(folder / "toy.gguf")
    (folder / "[red]bad\x1b[31m.gguf").write_bytes(b"GGUF")
    app = chat(paths)
    async with app.run_test(size=size) as pilot:
        screen = await opened(app, pilot)
        rows = lines(screen)
        assert [row.strip().split()[0] for row in rows if EMBEDDED in row] == ["▶"]
        assert any("● fits" in row and "Toy" in row for row in rows)
        assert "▲ unreadable" in rows[-1]
        assert "[red]bad.gguf" in rows[-1]  # neither markup nor terminal control
        assert all(("F32" in row) == (size[0] > 60) for row in rows if "Toy" in row)
        assert "experts" in details(screen)
        await pilot.press("pagedown")
        await soon(lambda: "ends inside its header" in details(screen))
        await pilot.press("enter")
        await soon(lambda: "cannot be used" in details(screen))
        await pilot.press(*"toy")
        await soon(lambda: len(lines(screen)) == 1 and "dense" in details(screen))
        await pilot.press("escape")
        await soon(lambda: not isinstance(app.screen, ModelScreen))
    app.close()


async def test_another_model_answers_and_the_chat_stays(ready: Paths, house: Path) -> None:
    folder = house / ".lmstudio/models/a/b"
    folder.mkdir(parents=True)
    other = copy_embedded(folder, "other")
    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        first = await answered(app)
        app.prompt.text = "/model other"
        app.prompt._send()
        await soon(lambda: showing(app, ModelScreen))
        screen = app.screen
        assert isinstance(screen, ModelScreen)
        await soon(lambda: screen.query(Input) and screen.query_one(Input).value == "other")
        await soon(lambda: any(EMBEDDED in row for row in lines(screen)))
        await pilot.press("enter")
        await soon(lambda: "answers here" in shown(app))
        assert app.link.model == other
        await soon(is_ready(app))
        assert first.split()[0] in shown(app)
        await ask(app, "And another.")
        assert await answered(app)
        assert [entry.role for entry in app.chats.open.entries] == ["user", "assistant"] * 2
        await app.link.switch(EMBEDDED_MODEL)  # the engine serves the next test
        await soon(is_ready(app))
    app.close()


async def test_the_one_that_answers_is_loaded_again_where_another_file_has_its_name(
    paths: Paths, tmp_path: Path
) -> None:
    model = copy_embedded(tmp_path)
    (tmp_path / "new").mkdir()
    app = chat(paths, model=model)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        for said, where in (("answers already", hint), ("is another file now", shown)):
            await app.picking._switch(model, "the model")
            await soon(lambda said=said, where=where: said in where(app).replace("\n", " "))
            file_of_experts(copy_embedded(tmp_path / "new")).replace(file_of_experts(model))
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        assert await answered(app)
        await pilot.pause()
    app.close()


async def test_a_model_that_does_not_load_says_why(ready: Paths, house: Path) -> None:
    folder = house / ".lmstudio/models/a/b"
    folder.mkdir(parents=True)
    toy = write_llama(folder / "toy.gguf")
    toy.write_bytes(toy.read_bytes().replace(b"tokenizer.ggml.tokens", b"tokenizer.ggml.t0kens"))
    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        screen = await opened(app, pilot)
        await pilot.press(*"toy")
        await soon(lambda: len(lines(screen)) == 1)
        await pilot.press("enter")
        await soon(lambda: "▲" in status(app))
        assert "toy.gguf" in shown(app).replace("\n", "")
        await app.link.switch(EMBEDDED_MODEL)
        await soon(is_ready(app))
    app.close()


async def test_kept_for_every_start(paths: Paths, tmp_path: Path) -> None:
    app = chat(paths)
    app.adjusting.settings = Settings(tmp_path / "settings.toml")
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press("ctrl+s")
        await soon(lambda: "at every start" in details(screen))
    app.close()
    assert read_settings(tmp_path / "settings.toml").get("models.start") == EMBEDDED_MODEL


async def test_a_model_is_fetched_by_name(paths: Paths, hub: Hub, tmp_path: Path) -> None:
    hub.files = {"toy.gguf": write_llama(tmp_path / "toy.gguf").read_bytes()}
    app = chat(paths)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        assert hub.asked == []  # nothing touches the network unless asked
        await pilot.press(*NAME)
        await soon(lambda: lines(screen) == [f"↓ download {NAME}"])
        await pilot.press("enter")
        await soon(lambda: any("Toy" in row for row in lines(screen)))
        await pilot.press("escape")
        await soon(lambda: "is here and verified" in shown(app))
    app.close()
    assert (paths.models / NAME / "toy.gguf").exists()


async def test_a_download_is_stopped_goes_on_and_its_rest_removed(paths: Paths, hub: Hub) -> None:
    hub.pause_s = 0.05
    app = chat(paths)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press(*NAME)
        await pilot.press("enter")
        await soon(lambda: any("fetching" in row for row in lines(screen)))
        await pilot.press("pageup", "delete")
        await soon(lambda: app.picking.downloads.step is None)
        await soon(lambda: any("unfinished" in row for row in lines(screen)))
        hub.pause_s = 0
        await pilot.press("pagedown")
        await soon(lambda: "Enter goes on" in details(screen))
        await pilot.press("enter")
        await soon(
            lambda: any("unreadable" in row for row in lines(screen))
        )  # random bytes, as they were promised
        assert hub.asked[-1][1].startswith("bytes=")
        part_of(paths.models, DATA, "other.gguf").write_bytes(DATA)
        await pilot.press("escape")
        screen = await opened(app, pilot)
        await pilot.press("pagedown", "delete")
        await soon(lambda: "Removed" in details(screen))
        assert leftovers(paths.models) == []
    app.close()


async def test_a_hub_that_hangs_hangs_nothing_else(paths: Paths, hub: Hub) -> None:
    """The chat is left within a moment although the thread that asks the hub never comes back."""
    hub.silent = True
    app = chat(paths)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press(*NAME)
        await pilot.press("enter")
        await soon(lambda: any("asking the hub" in row for row in lines(screen)))
        await pilot.press("escape")
        await pilot.press("ctrl+n")
        await pilot.press(*"typed")
        assert app.prompt.text == "typed"
        screen = await opened(app, pilot)
        await pilot.press("pageup", "delete")
        await soon(lambda: app.picking.downloads.step is None, 5)
        started = time.monotonic()
    assert time.monotonic() - started < 10
    app.close()


async def test_a_hub_that_is_away_is_said(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    app = chat(paths)
    async with app.run_test(size=(80, 24)) as pilot:
        screen = await opened(app, pilot)
        await pilot.press(*NAME, "enter")
        await soon(lambda: "offline: the hub cannot be reached" in shown(app).replace("\n", " "))
        await soon(lambda: "offline: the hub cannot be reached" in details(screen))
        assert app.picking.downloads.step is None
        assert hint(app) == ""
    app.close()
