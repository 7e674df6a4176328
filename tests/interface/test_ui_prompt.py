"""Enter sends, pastes never do, and nothing typed is lost."""

from __future__ import annotations

import pytest
from support import chat, shown, soon
from test_ui_chat import answered, is_ready
from textual import events
from textual._xterm_parser import XTermParser
from textual.geometry import Offset

from app.chat import ChatApp
from engine.paths import Paths


def sent(app: ChatApp) -> list[str]:
    return [entry.text for entry in app.chats.open.entries if entry.role == "user"]


def type_at_once(app: ChatApp, data: str) -> None:
    """What a terminal sends in one go, as the driver would pass it on."""
    for event in XTermParser().feed(data):
        app.post_message(event)


async def test_enter_sends(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await pilot.press("h", "i", "enter")
        await soon(lambda: sent(app) == ["hi"])
        assert app.prompt.text == ""
        await answered(app)
    app.close()


@pytest.mark.parametrize("key", ["\n", "\x1b\r", "\x1b[13;2u", "\x1b[13;3u"])
async def test_a_newline_key_does_not_send(ready: Paths, key: str) -> None:
    app = chat(ready)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await pilot.press("a")
        type_at_once(app, key)
        await soon(lambda: app.prompt.text == "a\n")
        await pilot.press("b")
        assert app.prompt.text == "a\nb"
        assert sent(app) == []
    app.close()


async def test_an_empty_prompt_is_not_sent(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await pilot.press("space", "enter")
        await soon(lambda: app.prompt._enter is None)
        assert sent(app) == []
        assert app.prompt.text == " "
    app.close()


async def test_a_paste_keeps_every_line_and_sends_nothing(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test():
        await soon(is_ready(app))
        app.post_message(events.Paste("one\r\ntwo\tx\rthree\x00\x1b[31m[b]\n"))
        await soon(lambda: app.prompt.text != "")
        assert app.prompt.text == "one\ntwo x\nthree[b]\n"
        assert sent(app) == []
    app.close()


async def test_a_paste_without_brackets_sends_nothing(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        type_at_once(app, "first line\rsecond line\rthird\r")
        await soon(lambda: app.prompt.text.count("\n") == 3)
        assert app.prompt.text == "first line\nsecond line\nthird\n"
        assert sent(app) == []
        await pilot.pause(0.1)  # a person's Enter comes later
        await pilot.press("enter")
        await soon(lambda: sent(app) == ["first line\nsecond line\nthird\n"])
        await answered(app)
    app.close()


async def test_a_line_typed_by_a_script_is_sent(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test():
        await soon(is_ready(app))
        type_at_once(app, "hello there\r")
        await soon(lambda: sent(app) == ["hello there"])
        await answered(app)
    app.close()


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("abc\x7f\x7fxy", "axy"),
        ("one two\x1b[D\x1b[D\x1b[DX", "one Xtwo"),
        ("one two\x1b[HX\x1b[FY", "Xone twoY"),
        ("gone\x15kept", "kept"),
        ("one two\x17three", "one three"),
        ("ab\x1b[D\x1b[3~c", "ac"),
        ("one\ntwo\x1b[AX", "oneX\ntwo"),
    ],
)
async def test_fast_editing_keys_keep_their_order(paths: Paths, keys: str, text: str) -> None:
    app = chat(paths)
    async with app.run_test():
        await soon(app.restored.is_set)
        type_at_once(app, keys + "!")
        await soon(lambda: "!" in app.prompt.text)
        await soon(lambda: app.prompt._message_queue.empty() and app._message_queue.empty())
        assert app.prompt.text.replace("!", "", 1) == text
        assert sent(app) == []
    app.close()


@pytest.mark.parametrize("after", ["", "\x7f\x7f", "\x15", "\x1b[D"])
async def test_enter_sends_what_was_typed_and_edited_before_it(ready: Paths, after: str) -> None:
    app = chat(ready)
    async with app.run_test():
        await soon(is_ready(app))
        type_at_once(app, "abc\x7f\x7fxy\r" + after)
        await soon(lambda: sent(app) == ["axy"])
        await answered(app)
        assert app.prompt.text == ""
    app.close()


async def test_what_is_typed_before_the_sent_text_is_taken_stays(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test():
        await soon(is_ready(app))
        app.prompt.text = "first\nline"
        app.prompt._send()
        app.prompt.insert(" next", app.prompt.document.end)
        await soon(lambda: sent(app) == ["first\nline"])
        assert app.prompt.text == " next"
        await answered(app)
    app.close()


async def test_a_huge_paste_is_whole_and_warned_about(ready: Paths) -> None:
    text = "\n".join(f"line {number} " + "x" * 90 for number in range(20_000))
    app = chat(ready)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        app.post_message(events.Paste(text))
        await soon(lambda: app.prompt.text == text)
        await soon(lambda: "the context holds" in str(app.prompt.border_title))
        await pilot.press("z")
        assert app.prompt.text == text + "z"
        app.prompt._send()
        await answered_or_refused(app)
        assert sent(app)[-1] == text + "z"
        assert "more characters" in shown(app)
        assert "the context" in shown(app)
    app.close()


async def answered_or_refused(app: ChatApp) -> None:
    await soon(lambda: app.chats.open.entries)
    await answered(app)


async def test_the_cursor_lands_on_wide_characters(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        app.post_message(events.Paste("こんにちは"))
        await soon(lambda: app.prompt.text == "こんにちは")
        # The second cell of the third character belongs to that character.
        inner = app.prompt.content_region
        await pilot.click(offset=Offset(inner.x + 5, inner.y))
        assert app.prompt.cursor_location in ((0, 2), (0, 3))
        await pilot.press("x")
        assert app.prompt.text in ("こんxにちは", "こんにxちは")
    app.close()
