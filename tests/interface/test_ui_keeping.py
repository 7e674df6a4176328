"""What is kept from one start to the next, and between two windows."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support import chat, hint, rows, showing, shown, soon, status
from test_ui_chat import LONG, answered, ask, is_ready

from app.chatlist import ChatListScreen
from app.history import History
from app.recorder import Recorder
from engine.paths import Paths


def stored(paths: Paths, *turns: tuple[str, str]) -> int:
    """A chat that was held before."""
    history = History(paths.history)
    number = history.create()
    for question, answer in turns:
        _, message = history.begin_turn(number, question, "ar")
        history.finish(message, answer, "done", {})
    history.close()
    return number


async def test_the_last_chat_and_the_unsent_prompt_come_back(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        text = await answered(app)
        app.prompt.text = "half a [thought]\nmore"
        await pilot.press("ctrl+q")
    app.close()
    again = chat(ready)
    async with again.run_test():
        await soon(lambda: "Name a colour." in shown(again))
        assert again.chats.open.entries[-1].text == text
        await soon(lambda: again.prompt.text == "half a [thought]\nmore")
    again.close()


@pytest.mark.parametrize("draft", ["", "unsent"])
async def test_a_start_shows_the_chat_that_was_open_at_the_end(paths: Paths, draft: str) -> None:
    stored(paths, ("older question", "older answer"))
    stored(paths, ("newer question", "newer answer"))
    app = chat(paths)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: "newer answer" in shown(app))
        await pilot.press("ctrl+o")
        await soon(lambda: showing(app, ChatListScreen))
        await pilot.press("enter")
        await soon(lambda: "older answer" in shown(app))
        app.prompt.text = draft
        await pilot.press("ctrl+q")
    app.close()
    again = chat(paths)
    async with again.run_test(size=(80, 24)):
        await soon(again.restored.is_set)
        assert "older answer" in shown(again)
        assert again.prompt.text == draft
    again.close()


def test_opening_a_chat_or_saving_its_draft_makes_it_the_last(paths: Paths) -> None:
    first, second = stored(paths, ("a", "b")), stored(paths, ("c", "d"))
    history = History(paths.history)
    for use in (lambda: history.claim(first), lambda: history.save_draft(first, "draft")):
        history._db.execute("UPDATE conversations SET updated = id")
        assert [chat.id for chat in history.conversations()] == [second, first]
        use()
        assert [chat.id for chat in history.conversations()] == [first, second]
    history.close()


async def test_the_prompt_is_saved_while_it_is_typed(ready: Paths) -> None:
    app = chat(ready)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await pilot.press("h", "i")
        await soon(lambda: rows(ready, "SELECT draft FROM conversations") == [("hi",)])
    app.close()


@pytest.mark.parametrize("command", ["/delete", "/new", "/open older", "/import CHAT", "/undo", "/quit"])
async def test_a_command_that_leaves_a_chat_is_not_its_draft(paths: Paths, command: str) -> None:
    older = stored(paths, ("older question", "older answer"))
    gone = stored(paths, ("gone question", "gone answer"))
    newer = stored(paths, ("newer question", "newer answer"))
    history = History(paths.history)
    history.delete(gone)
    history.close()
    paths.data.joinpath("CHAT").write_text("## You\n\nq\n\n## Answer\n\na\n")
    app = chat(paths)
    draft = f"SELECT draft FROM conversations WHERE id = {newer}"
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: "newer answer" in shown(app))
        typed = command.replace("CHAT", str(paths.data / "CHAT"))
        await pilot.press(*typed)
        await soon(lambda: rows(paths, draft) == [(typed,)])
        await pilot.pause(0.05)  # an Enter that follows at once is part of a paste
        await pilot.press("enter")
        if command.startswith("/open"):
            await soon(lambda: showing(app, ChatListScreen) and len(app.screen.rows) == 1)
            await pilot.press("enter")
        await soon(lambda: not app.is_running or app.chats.open.id != newer)
        await soon(lambda: rows(paths, draft) == [("",)])
        if command == "/delete":
            app.prompt.text = "/undo"
            await soon(lambda: rows(paths, "SELECT 1 FROM conversations WHERE draft = '/undo'"))
            app.prompt._send()
            await soon(lambda: "newer answer" in shown(app))
        if command != "/quit":
            await soon(lambda: app.prompt.text == "")
            await pilot.pause(0.2)
    app.close()
    assert rows(paths, "SELECT draft FROM conversations WHERE draft != ''") == []
    assert older < gone < newer


async def test_quitting_in_the_middle_keeps_the_text(ready: Paths) -> None:
    app = chat(ready, **LONG)
    async with app.run_test() as pilot:
        await soon(is_ready(app))
        await ask(app, "Tell me a long story.")
        await soon(lambda: app.asker.has_text)
        await pilot.press("ctrl+q")
    app.close()
    ((status_word, content),) = rows(ready, "SELECT status, content FROM messages WHERE role = 'assistant'")
    assert status_word == "stopped"
    assert content


async def test_an_interrupted_answer_is_shown_as_one(paths: Paths) -> None:
    history = History(paths.history)
    number = history.create()
    _, message = history.begin_turn(number, "question", "ar")
    history.save_partial(message, "half an ans")
    history._db.execute("UPDATE messages SET owner = '1:1:gone' WHERE owner IS NOT NULL")
    history._db.execute("UPDATE conversations SET owner = '1:1:gone'")
    history._db.close()
    app = chat(paths)
    async with app.run_test(size=(120, 30)):
        await soon(lambda: "half an ans" in shown(app))
        assert "▲ interrupted" in shown(app)
    app.close()


async def test_a_second_window_gets_a_chat_of_its_own(ready: Paths) -> None:
    stored(ready, ("old question", "old answer"))
    elsewhere = History(ready.history)
    other = elsewhere.conversations()[0].id
    elsewhere._db.execute("UPDATE conversations SET owner = ?", (f"{_living_process()}",))
    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(is_ready(app))
        assert "old question" not in shown(app)
        await ask(app, "Name a colour.")
        await answered(app)
        await pilot.press("ctrl+o")
        await soon(lambda: showing(app, ChatListScreen))
        await pilot.press("enter")
        assert isinstance(app.screen, ChatListScreen)  # the only other chat cannot be opened
        await pilot.press("escape")
    app.close()
    assert rows(ready, f"SELECT count(*) FROM messages WHERE conversation = {other}") == [(2,)]
    elsewhere.close()


def _living_process() -> str:
    """The owner's name of process 1, which runs as long as this machine does."""
    fields = Path("/proc/1/stat").read_text().rpartition(")")[2].split()
    return f"1:{fields[19]}:{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"


async def test_new_and_open(ready: Paths) -> None:
    stored(ready, ("first [/b] question", "first answer"))
    app = chat(ready)
    async with app.run_test(size=(80, 24)) as pilot:
        await soon(lambda: "first answer" in shown(app))
        await soon(is_ready(app))
        app.prompt.text = "moves along"
        await pilot.press("ctrl+n")
        await soon(lambda: "first answer" not in shown(app))
        assert app.prompt.text == "moves along"
        await ask(app, "Name a colour.")
        await answered(app)
        await pilot.press("ctrl+o")
        await soon(lambda: showing(app, ChatListScreen))
        await pilot.press("enter")
        await soon(lambda: "first answer" in shown(app))
        assert "Name a colour." not in shown(app)
    app.close()


async def test_a_history_that_cannot_be_written_is_a_notice(ready: Paths) -> None:
    ready.data.mkdir()
    (ready.data / "history.sqlite3").mkdir()
    app = chat(ready)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(lambda: "this chat will not be saved" in shown(app))
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        assert await answered(app)
        await pilot.press("ctrl+t")
        await soon(lambda: "s2-exact" in status(app))
    app.close()


class Disk:
    """Refuses to store anything while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = False
        run = Recorder._run

        def refuse(recorder: Recorder, work: Any) -> Any:
            if self.full:
                raise sqlite3.OperationalError("database or disk is full")
            return run(recorder, work)

        monkeypatch.setattr(Recorder, "_run", refuse)


TURNS = "SELECT role, content != '', status FROM messages ORDER BY id"
WHOLE_TURN = [("user", 1, "done"), ("assistant", 1, "done")]


@pytest.mark.parametrize("room_after", ["the turn", "the question"])
async def test_what_a_full_disk_refused_is_stored_once_there_is_room(
    ready: Paths, monkeypatch: pytest.MonkeyPatch, room_after: str
) -> None:
    disk = Disk(monkeypatch)
    app = chat(ready)
    async with app.run_test(size=(100, 30)):
        await soon(is_ready(app))
        await ask(app, "Name a colour.")
        await answered(app)
        disk.full = True
        await ask(app, "Name a river.")
        await soon(lambda: "the chat is not being saved" in shown(app))
        disk.full = room_after == "the turn"
        await answered(app)
        assert len(rows(ready, TURNS)) == (2 if disk.full else 4)
        disk.full = False
        await ask(app, "Name a tree.")
        await answered(app)
    app.close()
    assert rows(ready, TURNS) == 3 * WHOLE_TURN
    questions = rows(ready, "SELECT content FROM messages WHERE role = 'user' ORDER BY id")
    assert [text for (text,) in questions] == ["Name a colour.", "Name a river.", "Name a tree."]


async def test_what_a_full_disk_refused_is_stored_at_the_end(
    ready: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    app = chat(ready)
    async with app.run_test(size=(100, 30)) as pilot:
        await soon(is_ready(app))
        disk.full = True
        await ask(app, "Name a colour.")
        await answered(app)
        app.prompt.text = "unsent"
        disk.full = False
        await pilot.press("ctrl+q")
    app.close()
    assert rows(ready, TURNS) == WHOLE_TURN
    assert rows(ready, "SELECT title, draft FROM conversations") == [("Name a colour.", "unsent")]


@pytest.mark.parametrize("damage", ["'{bad'", "'[1]'", "x'ff00'", '\'{"predicted_n": "many"}\'', "7"])
async def test_a_damaged_cell_does_not_keep_the_chat_from_opening(paths: Paths, damage: str) -> None:
    stored(paths, ("a question", "an answer"), ("another", "one more"))
    with contextlib.closing(sqlite3.connect(paths.history)) as database, database:
        database.execute(f"UPDATE messages SET timings = {damage}")
        database.execute("UPDATE messages SET content = x'ff', mode = x'fe' WHERE content = 'an answer'")
        database.execute(f"UPDATE conversations SET title = {damage}, draft = CAST(x'68ff' AS TEXT)")
    app = chat(paths)
    async with app.run_test(size=(100, 30)):
        await soon(lambda: "a question" in shown(app) and "one more" in shown(app))
        await soon(lambda: app.prompt.text == "h\ufffd")
    app.close()


async def test_copying_goes_to_a_file_as_well(ready: Paths) -> None:
    stored(ready, ("question", "answer with [markup] 猫"))
    app = chat(ready)
    async with app.run_test() as pilot:
        await soon(lambda: "answer with" in shown(app))
        await pilot.press("ctrl+y")
        file = ready.state / "last-answer.md"
        await soon(lambda: str(file) in hint(app))
        assert file.read_text() == "answer with [markup] 猫"
        assert file.stat().st_mode & 0o777 == 0o600
        assert app.clipboard == "answer with [markup] 猫"
    app.close()
