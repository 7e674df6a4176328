"""The panel of the speculation in the chat, with the real engine: it follows an answer, and costs nothing
while it is closed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from support import chat, showing, shown, soon
from test_ui_chat import LONG, answered, ask, is_ready
from test_ui_keeping import stored
from test_ui_screen import coloured, screen_lines

from app.chat import ChatApp
from app.chatlist import ChatListScreen
from engine.model import read_model_info
from engine.paths import EMBEDDED_MODEL, Paths
from engine.transport import SocketTransport

STORY = "Tell me a long story."


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What comes from the engine for answers, as it comes."""
    seen: list[dict[str, Any]] = []
    events = SocketTransport.events

    async def watched(
        transport: SocketTransport, method: str, path: str, *more: Any
    ) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(events(transport, method, path, *more)) as stream:
            async for data in stream:
                if path == "/v1/chat/completions":
                    seen.append(data)
                yield data

    monkeypatch.setattr(SocketTransport, "events", watched)
    return seen


def looks(wire: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [data["s2"]["look"] for data in wire if "look" in (data.get("s2") or {})]


def panel(app: ChatApp) -> str:
    return app.watching.panel.text


@pytest.mark.parametrize("size", [(60, 20), (80, 24), (160, 45)])
async def test_the_panel_follows_an_answer(
    ready: Paths, wire: list[dict[str, Any]], size: tuple[int, int]
) -> None:
    app = chat(ready, mode="s2-exact", **LONG)
    async with app.run_test(size=size) as pilot:
        await soon(is_ready(app))
        await pilot.press("ctrl+s")
        await soon(lambda: "Blocks show here" in panel(app))
        await ask(app, STORY)
        await soon(lambda: "tokens/pass" in panel(app) and "used" in panel(app))
        before = panel(app)
        await soon(lambda: panel(app) != before)
        await pilot.pause()
        lines = screen_lines(app)
        assert len(lines) == size[1]
        assert any("Speculation" in line for line in lines)
        assert any("s2-exact =exact" in line and "│" in line for line in lines[:-4])
        assert "Tell me a long story."[:20] in shown(app)
        assert app.transcript.size.height >= 5
        assert app.prompt.has_focus
        await pilot.press("f2")  # for the next answer
        assert app.mode != "s2-exact"
        await soon(lambda: panel(app) != before and "s2-exact =exact" in panel(app))
        await pilot.press("escape")
        await answered(app)
        assert "+ " in panel(app)
        assert "s2-exact =exact" in panel(app)
    app.close()
    told = [block for look in looks(wire) for block in look["blocks"]]
    assert told
    assert all(set(block) == {"source", "drafted", "accepted", "own", "ms"} for block in told)


@pytest.mark.parametrize("size", [(20, 8), (30, 12), (110, 9), (240, 60)])
async def test_it_never_takes_the_line_that_is_typed_in(paths: Paths, size: tuple[int, int]) -> None:
    app = chat(paths)
    async with app.run_test(size=size) as pilot:
        await pilot.press("ctrl+s", *"hello")
        await soon(lambda: any("hello" in line for line in screen_lines(app)))
        await pilot.press("ctrl+s")
        await soon(lambda: app.watching.panel is None)
    app.close()


async def test_it_shows_the_open_chats_answer_and_no_others(ready: Paths) -> None:
    stored(ready, ("a question", "an answer of another day"))
    app = chat(ready, mode="s2-exact", max_tokens=24, ignore_eos=True)
    async with app.run_test(size=(100, 40)) as pilot:
        await soon(is_ready(app))
        await pilot.press("ctrl+n", "ctrl+s")
        await ask(app, STORY)
        await answered(app)
        assert "tokens/pass" in panel(app)
        await pilot.press("ctrl+n")
        await soon(lambda: "Blocks show here" in panel(app))
        assert "tokens/pass" not in panel(app)
        await ask(app, "And here?")
        await answered(app)
        assert "tokens/pass" in panel(app)
        await pilot.press("ctrl+o")
        await soon(lambda: showing(app, ChatListScreen))
        await pilot.press(*"another day")
        await soon(lambda: showing(app, ChatListScreen) and len(app.screen.rows) == 1)
        await pilot.press("enter")
        await soon(lambda: "an answer of another day" in shown(app))
        await soon(lambda: "Blocks show here" in panel(app))
        assert "tokens/pass" not in panel(app)
    app.close()


async def test_nothing_is_sent_while_the_panel_is_closed(ready: Paths, wire: list[dict[str, Any]]) -> None:
    app = chat(ready, mode="s2-exact", **LONG)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        await ask(app, STORY)
        await soon(lambda: len(app.asker.text) > 100)
        assert not looks(wire)
        assert app.watching.panel is None
        await pilot.press("ctrl+s")
        await soon(lambda: looks(wire))
        await soon(lambda: "tokens/pass" in panel(app))
        await pilot.press("ctrl+s")
        count = len(wire)
        await soon(lambda: len(wire) > count + 2)  # what was on its way
        count = len(looks(wire))
        length = len(app.asker.text)
        await soon(lambda: len(app.asker.text) > length + 100)
        assert len(looks(wire)) == count
        assert app.watching.panel is None
        await pilot.press("escape")
        await answered(app)
        await ask(app, "And then?")
        await soon(lambda: len(app.asker.text) > 50)
        await pilot.press("escape")
        await answered(app)
        assert len(looks(wire)) == count
    app.close()


async def test_watching_changes_no_character(ready: Paths) -> None:
    app = chat(ready, mode="s2-exact", temperature=0.8, seed=5, max_tokens=60)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        await ask(app, STORY)
        alone = await answered(app)
        await pilot.press("ctrl+s")
        await pilot.press("ctrl+r")
        await soon(lambda: app.is_answering)
        assert await answered(app) == alone
        assert len(app.chats.open.all) == 3
    app.close()


async def test_a_gain_is_measured_where_the_same_was_asked_in_ar(ready: Paths) -> None:
    app = chat(ready, mode="ar", max_tokens=40, ignore_eos=True)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(is_ready(app))
        app.prompt.text = "/watch"
        app.prompt._send()
        await soon(lambda: app.watching.panel is not None)
        await ask(app, "Repeat: one, two, three, one, two, three, one, two, three, one, two, three.")
        await answered(app)
        assert "ar =exact · nothing drafted" in panel(app)
        assert "measured" not in panel(app)
        app.mode = "ngram"
        await pilot.press("ctrl+r")
        await soon(lambda: app.is_answering)
        await answered(app)
        assert "ngram =exact" in panel(app)
        assert "× ar, measured" in panel(app)
        await ask(app, "And another question.")
        await answered(app)
        assert "measured" not in panel(app)
    app.close()


async def test_it_works_without_colours(ready: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    info = read_model_info(EMBEDDED_MODEL)
    bar = "▁▁▂▃▄▅▆▇█"[round(8 * info.n_expert_used / info.n_expert)]
    app = chat(ready, mode="ar", **LONG)  # a pass of one row uses the same share of experts in each layer
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        await pilot.press("ctrl+s")
        await ask(app, STORY)
        await soon(lambda: "used" in panel(app))
        await pilot.pause()
        assert any(bar in line for line in screen_lines(app))
        assert coloured(app) == []
        await pilot.press("escape")
        await answered(app)
    app.close()
