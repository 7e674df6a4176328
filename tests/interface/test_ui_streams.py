"""An answer that streams at a steady rate: all its characters, whatever happens to the screen meanwhile."""

from __future__ import annotations

import pytest
from support import chat, rows, shown, soon
from test_ui_chat import answered, ask
from test_ui_prompt import FAMILY
from textual import events

from app.bench import prose
from app.bench.stand import Stand, standing
from app.chat import ChatApp
from engine.paths import Paths

STORED = "SELECT content FROM messages WHERE role = 'assistant'"


async def begun(app: ChatApp) -> None:
    await soon(app.restored.is_set)
    await soon(lambda: app.board.is_ready)
    await ask(app, "Go on.")
    await soon(lambda: app.asker.has_text)


@pytest.mark.parametrize(
    "text",
    [
        f"{FAMILY} and {FAMILY}",
        "नमस्ते दुनिया क्षत्रिय",
        "\U0001f1eb\U0001f1f7 \U0001f1e9\U0001f1ea 〽\ufe0f e\u0301 שלום 猫\ufffd",
        "`\U0001f469\u200d\U0001f4bb` **नम**\n\n```\n猫 = '\U0001f431'\n```\n",
    ],
)
async def test_characters_that_come_in_pieces_are_whole_in_the_end(paths: Paths, text: str) -> None:
    app = chat(paths)
    with standing(Stand(list(text), 50.0), paths):
        async with app.run_test(size=(60, 20)):
            await begun(app)
            assert await answered(app) == text
            for word in text.replace("*", " ").replace("`", " ").split():
                assert word in shown(app)
            for strip in app.screen._compositor.render_strips():
                assert strip.cell_length == 60
        app.close()
    assert rows(paths, STORED) == [(text,)]


async def test_a_window_that_is_dragged_to_nothing_and_back_loses_no_character(paths: Paths) -> None:
    tokens = prose.tokens(3000)
    app = chat(paths)
    with standing(Stand(tokens, 600.0), paths) as stand:
        async with app.run_test(size=(200, 50)) as pilot:
            await begun(app)
            while app.is_answering:
                for width, height in ((40, 12), (1, 1), (200, 50)):
                    await pilot.resize_terminal(width, height)
                    await pilot.pause(0.1)
            assert await answered(app) == stand.text
            last = stand.text.rstrip().splitlines()[-1].split()[-1].strip("|*` ")
            await soon(lambda: last in shown(app))
        app.close()
    assert rows(paths, STORED) == [(stand.text,)]


async def test_a_huge_paste_while_an_answer_streams_is_whole_and_not_sent(paths: Paths) -> None:
    text = "\n".join(f"line {number} " + "x" * 90 for number in range(20_000))
    app = chat(paths)
    with standing(Stand(prose.tokens(20_000), 60.0), paths):
        async with app.run_test() as pilot:
            await begun(app)
            app.post_message(events.Paste(text.replace("\n", "\r\n") + "\x00"))
            await soon(lambda: app.prompt.text == text)
            await pilot.press("z")
            assert app.prompt.text == text + "z"
            assert app.is_answering
            assert len(app.chats.open.entries) == 2
            await pilot.press("escape")
            await soon(lambda: not app.is_answering)
            await soon(lambda: rows(paths, "SELECT draft FROM conversations") == [(text + "z",)])
        app.close()
    assert rows(paths, "SELECT count(*) FROM messages") == [(2,)]
