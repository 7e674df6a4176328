"""Enter sends, pastes never do, and nothing typed is lost."""

from __future__ import annotations

import pytest
from support import chat, hint, rows, shown, soon
from test_ui_chat import answered, is_ready
from test_ui_keeping import stored
from textual import events
from textual.geometry import Offset

from app.chat import ChatApp
from app.graphemes import bounds
from app.pasted import PasteParser
from app.turns import BUSY
from engine.paths import Paths


def sent(app: ChatApp) -> list[str]:
    return [entry.text for entry in app.chats.open.entries if entry.role == "user"]


def type_at_once(app: ChatApp, data: str) -> None:
    """What a terminal sends in one go, as the driver would pass it on."""
    for event in PasteParser().feed(data):
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


PASTES = [
    "one\ntwo",
    "",
    "\x1b",
    "a\x1b\x11b",  # outside of a paste this quits
    "\x1b[A\x1b[<0;1;1M\x1bOP\x1b\x1b[200~ \x1b[201 ~\r\x1b[13u",
    "x" * 40 + "\x1b" + "y" * 40,
]


@pytest.mark.parametrize("text", PASTES)
def test_nothing_in_a_paste_is_a_key_wherever_reads_cut_it(text: str) -> None:
    data = f"a\x1b[200~{text}\x1b[201~\x1b[Bz"
    for first in range(len(data) + 1):
        for second in (first + 1, first + 5):
            parser = PasteParser()
            parts = (data[:first], data[first:second], data[second:])
            found = [event for part in parts if part for event in parser.feed(part)]
            before, paste, *after = found
            assert isinstance(paste, events.Paste)
            assert paste.text == text
            assert [event.key for event in (before, *after) if isinstance(event, events.Key)] == [
                "a",
                "down",
                "z",
            ]
            assert len(after) == 2


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


async def test_keys_of_the_program_do_not_overtake_what_was_typed_before_them(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test():
        await soon(is_ready(app))
        type_at_once(app, "first\r\x0eand this")  # Ctrl+N, which has to wait for the answer
        await soon(lambda: hint(app) == BUSY)
        await soon(lambda: app.prompt.text == "and this")
        await answered(app)
        assert sent(app) == ["first"]
        type_at_once(app, "!\x0e?")
        await soon(lambda: app.prompt.text == "and this!?")
        assert sent(app) == []
        mode = app.mode
        type_at_once(app, "\x15second\r\x1bOQ third\x1bOQ.\x11")  # F2 twice, then Ctrl+Q
        await soon(lambda: not app.is_running)
        assert app.mode == app.board.mode_after(app.board.mode_after(mode))
    app.close()
    assert rows(ready, "SELECT content FROM messages WHERE role = 'user'") == [("first",), ("second",)]
    assert rows(ready, "SELECT draft FROM conversations ORDER BY id") == [("",), (" third.",)]


async def test_what_is_typed_behind_the_key_of_a_list_goes_into_the_list(ready: Paths) -> None:
    stored(ready, ("a river", "Elbe"))
    stored(ready, ("a colour", "red"))
    app = chat(ready)
    async with app.run_test():
        await soon(lambda: "red" in shown(app))
        type_at_once(app, "not sent\x0friver\r")  # Ctrl+O
        await soon(lambda: "Elbe" in shown(app))
        assert app.prompt.text == ""
        drafts = "SELECT draft FROM conversations ORDER BY id"
        await soon(lambda: rows(ready, drafts) == [("",), ("not sent",)])
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


FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"


@pytest.mark.parametrize(
    "character", ["〽\ufe0f", FAMILY, "\U0001f1eb\U0001f1f7", "e\u0301", "ש", "猫", "\U0001f44d\U0001f3fd"]
)
async def test_the_cursor_passes_and_erases_whole_characters(paths: Paths, character: str) -> None:
    app = chat(paths)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(app.restored.is_set)
        app.post_message(events.Paste(f"a{character}{character}b"))
        await soon(lambda: app.prompt.text.endswith("b"))
        places = []
        for _ in range(4):
            await pilot.press("left")
            places.append(app.prompt.cursor_location[1])
        length = len(character)
        assert places == [1 + 2 * length, 1 + length, 1, 0]
        await pilot.press("right", "right", "backspace")
        assert app.prompt.text == f"a{character}b"
        await pilot.press("delete")
        assert app.prompt.text == "ab"
        row = "".join(segment.text for segment in app.screen._compositor.render_strips()[-2])
        assert row.split("│")[1].strip() == "ab", "no cell of it stays"
    app.close()


def test_characters_of_a_line() -> None:
    line = f"a{FAMILY}\U0001f1eb\U0001f1f7\U0001f1e9\U0001f1eae\u0301"
    found, at = [], 0
    while at < len(line):
        start, end = bounds(line, at)
        assert start == at
        assert all(bounds(line, inside) == (start, end) for inside in range(start, end))
        found.append(line[start:end])
        at = end
    assert found == ["a", FAMILY, "\U0001f1eb\U0001f1f7", "\U0001f1e9\U0001f1ea", "e\u0301"]
    long = "é" * 1_000_000
    assert bounds(long, 500_000) == (500_000, 500_001)
    assert bounds("ab", 2) == (2, 2)
