"""The chat with the real engine: asking, stopping, crashing, coming back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from support import chat, engine_pid, hint, rows, shown, soon, status

from app import stopping
from app.chat import ChatApp
from engine.paths import Paths

LONG: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}


def is_ready(app: ChatApp) -> Callable[[], bool]:
    return lambda: "ready" in status(app)


async def ask(app: ChatApp, text: str) -> None:
    """Sends `text`; the answer may take its time."""
    count = len(app.chats.open.entries)
    app.prompt.text = text
    app.prompt._send()
    await soon(lambda: len(app.chats.open.entries) > count)


async def answered(app: ChatApp) -> str:
    await soon(lambda: not app.is_answering)
    entry = app.chats.open.last_answer
    assert entry is not None
    return entry.text


async def test_a_question_gets_its_answer(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test(size=(80, 24)):
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        text = await answered(app)
        assert text
        assert "┃ Name a colour." in shown(app)
        assert text.split()[0] in shown(app)
        assert "tokens" in shown(app)
        assert "tok/s" in status(app)
        assert "ctx " in status(app)
        await soon(lambda: rows(ready, "SELECT status FROM messages WHERE role = 'assistant'") == [("done",)])
    app.close()
    assert rows(ready, "SELECT role, content FROM messages ORDER BY id") == [
        ("user", "Name a colour."),
        ("assistant", text),
    ]


async def test_the_second_question_builds_on_the_first(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test():
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        await answered(app)
        await ask(app, "Another one.")
        await answered(app)
        timings = app.chats.open.entries[-1].timings
        assert timings is not None
        assert timings.cache_n > 10  # what the engine had of the first turn was used
    app.close()


@pytest.mark.parametrize("key", ["escape", "ctrl+c"])
async def test_stopping_keeps_the_text_and_ends_the_work(ready: Paths, key: str) -> None:
    app = chat(ready, **LONG)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await ask(app, "Tell me a long story.")
        await soon(lambda: app.asker.has_text)
        await pilot.press(key)
        text = await answered(app)
        assert app.is_running
        assert text
        assert "■ stopped" in shown(app)
        await soon(lambda: app.board.snapshot is not None and app.board.snapshot.running == 0)
        await soon(
            lambda: (
                rows(ready, "SELECT status, content FROM messages ORDER BY id DESC LIMIT 1")
                == [("stopped", text)]
            )
        )
        await ask(app, "And now?")
        await soon(lambda: app.asker.has_text)
        await pilot.press(key)
        await answered(app)
    app.close()


async def test_ctrl_c_quits_when_it_is_pressed_twice(ready: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    app = chat(ready)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        app.prompt.text = "unsent"
        await pilot.press("ctrl+c")
        assert "Ctrl+C again quits" in hint(app)
        monkeypatch.setattr(stopping, "_TWICE_S", 0.0)
        await pilot.press("ctrl+c")
        assert app.is_running, "that was another press, later"
        monkeypatch.setattr(stopping, "_TWICE_S", 60.0)
        await pilot.press("ctrl+c")
        await soon(lambda: not app.is_running)
    app.close()
    assert rows(ready, "SELECT draft FROM conversations") == [("unsent",)]


@pytest.mark.parametrize("frozen", [False, True])
async def test_ctrl_c_stops_an_answer_and_pressed_again_does_not_wait(paths: Paths, frozen: bool) -> None:
    app = chat(paths, **LONG)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await ask(app, "Count for ever.")
        await soon(lambda: app.asker.has_text)
        pid = engine_pid(paths)
        assert pid is not None
        if frozen:
            os.kill(pid, signal.SIGSTOP)
        await pilot.press("ctrl+c")
        if not frozen:
            await soon(lambda: not app.is_answering)
            assert app.is_running
        began = time.monotonic()
        await pilot.press("ctrl+c")
        await soon(lambda: not app.is_running)
        assert time.monotonic() - began < 10.0  # the engine has 15 s to give a sign of life
    app.close()
    os.kill(pid, signal.SIGCONT)
    ((status, content),) = rows(paths, "SELECT status, content FROM messages WHERE role = 'assistant'")
    assert status == "stopped"
    assert content


async def test_a_message_waits_for_the_model_in_sight(paths: Paths) -> None:
    app = chat(paths)
    async with app.run_test():
        assert "ready" not in status(app)
        await ask(app, "Name a colour.")
        await soon(lambda: "…" in shown(app))
        assert rows(paths, "SELECT content FROM messages WHERE role = 'user'") == [("Name a colour.",)]
        assert await answered(app)
    app.close()


async def test_stopping_while_it_waits(paths: Paths) -> None:
    app = chat(paths)
    async with app.run_test() as pilot:
        await ask(app, "Name a colour.")
        await pilot.press("escape")
        await answered(app)
        assert "■ stopped" in shown(app)
        await soon(is_ready(app))
        await pilot.press("ctrl+r")
        await soon(lambda: app.is_answering)
        assert await answered(app)
        assert "■ stopped" not in shown(app)
    app.close()


async def test_a_crash_is_explained_and_survived(paths: Paths) -> None:
    app = chat(paths, **LONG)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await ask(app, "Tell me a long story.")
        await soon(lambda: app.asker.has_text)
        pid = engine_pid(paths)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        text = await answered(app)
        assert text
        await soon(lambda: "killed (SIGKILL)" in shown(app))
        assert "▲ interrupted" in shown(app)
        assert rows(paths, "SELECT status, content FROM messages ORDER BY id DESC LIMIT 1") == [
            ("interrupted", text)
        ]
        await soon(is_ready(app))
        assert engine_pid(paths) != pid
        await pilot.press("ctrl+r")
        await soon(lambda: app.asker.has_text)
        await pilot.press("escape")
        await answered(app)
    app.close()


async def test_an_engine_that_was_stopped_starts_with_the_next_message(paths: Paths) -> None:
    app = chat(paths)
    async with app.run_test():
        await soon(is_ready(app))
        client = await app.link.client()
        await client.shutdown()
        await soon(lambda: "stopped" in status(app))
        await ask(app, "Name a colour.")
        assert await answered(app)
    app.close()


async def test_a_model_that_cannot_be_loaded_is_said_once(paths: Paths) -> None:
    paths.data.mkdir()
    broken = paths.data / "mo[del] [b.gguf"
    broken.write_bytes(b"GGUF")
    app = chat(paths, model=broken)
    async with app.run_test():
        await soon(lambda: status(app).startswith("▲"))
        await ask(app, "Hello?")
        await answered(app)
        assert "no answer" in shown(app)
        assert shown(app).count("mo[del] [b.gguf") == 1
    app.close()


async def test_a_full_context_is_said_plainly(paths: Paths) -> None:
    app = chat(paths, n_ctx=192, **LONG)
    async with app.run_test(size=(160, 45)):
        await soon(is_ready(app))
        await ask(app, "Tell me a long story.")
        text = await answered(app)
        assert text
        assert "the context is full" in shown(app)
        await ask(app, "word " * 300)
        await answered(app)
        assert "no answer" in shown(app)
        await soon(lambda: app.prompt.text.startswith("word"))  # to be shortened
        # What did not fit is not sent again with the next question.
        assert app.chats.open.entries[-2].status == "error"
    app.close()


async def test_the_mode_is_for_the_next_answer_and_remembered(ready: Paths) -> None:
    app = chat(ready, max_tokens=48, ignore_eos=True)
    async with app.run_test(size=(120, 30)) as pilot:
        await soon(is_ready(app))
        assert "ar =exact" in status(app)
        await pilot.press("ctrl+t")
        await soon(lambda: "s2-exact =exact" in status(app))
        await ask(app, "Tell me a story.")
        await answered(app)
        assert "acc " in shown(app)
        assert "/pass" in status(app)
    app.close()
    assert rows(ready, "SELECT mode FROM messages WHERE role = 'assistant'") == [("s2-exact",)]
    again = chat(ready, mode="")
    async with again.run_test():
        await soon(lambda: "s2-exact" in status(again))
    again.close()


async def test_a_question_while_an_answer_is_written_stays_in_the_prompt(ready: Paths) -> None:
    app = chat(ready, **LONG)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await ask(app, "Tell me a long story.")
        await soon(lambda: app.asker.has_text)
        app.prompt.text = "next"
        app.prompt._send()
        await soon(lambda: hint(app) == "An answer is being written. Esc stops it.")
        assert app.prompt.text == "next"
        for key in ("ctrl+n", "ctrl+o", "ctrl+r"):
            await pilot.press(key)
        assert len(app.screen_stack) == 1
        assert len(app.chats.open.entries) == 2
        await pilot.press("escape")
        await answered(app)
    app.close()
