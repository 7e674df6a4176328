"""The history survives crashes, other windows, full disks and damage."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from support import rows, until

from app import schema
from app.history import History, HistoryError
from app.owner import Owner
from app.recorder import Recorder
from engine.paths import Paths

# Another window: begins an answer, saves a part of it, says so, and stays.
_WINDOW = """
import sys, time
from pathlib import Path
from app.history import History
history = History(Path(sys.argv[1]))
chat = history.create()
_, answer = history.begin_turn(chat, "question", "ar")
history.save_partial(answer, "half an ans")
print("saved", flush=True)
time.sleep(600)
"""


@pytest.fixture
def history(paths: Paths) -> History:
    return History(paths.history)


def window(paths: Paths) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _WINDOW, str(paths.history)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "saved\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_turn_is_stored_before_its_answer(history: History, paths: Paths) -> None:
    chat = history.create()
    history.begin_turn(chat, "what is [b]?", "s2-exact")
    assert rows(paths, "SELECT role, content, status, mode FROM messages ORDER BY id") == [
        ("user", "what is [b]?", "done", None),
        ("assistant", "", "streaming", "s2-exact"),
    ]


def test_a_chat_comes_back_as_it_was(history: History, paths: Paths) -> None:
    chat = history.create()
    _, answer = history.begin_turn(chat, "hello", "ar")
    history.finish(answer, "hi 猫", "stopped", {"predicted_n": 3, "end": "stopped"}, "s2")
    history.save_draft(chat, "next\nline")
    history.close()
    later = History(paths.history)
    last = later.last()
    assert last is not None
    assert (last.title, last.draft) == ("hello", "next\nline")
    stored = later.messages(last.id)
    assert [(item.role, item.content, item.status) for item in stored] == [
        ("user", "hello", "done"),
        ("assistant", "hi 猫", "stopped"),
    ]
    assert stored[1].timings == {"predicted_n": 3, "end": "stopped"}
    assert stored[1].mode == "s2"  # it ran in, not "ar" that was asked for
    later.finish(answer, "hi", "done", {})
    assert later.messages(last.id)[1].mode == "s2"


def test_sending_empties_the_draft_in_the_same_step(history: History) -> None:
    chat = history.create()
    history.save_draft(chat, "hello")
    history.begin_turn(chat, "hello", "ar")
    last = history.last()
    assert last is not None
    assert last.draft == ""


def test_an_answer_whose_window_died_is_marked_interrupted(paths: Paths) -> None:
    process = window(paths)
    end(process)
    history = History(paths.history)
    last = history.last()
    assert last is not None
    answer = history.messages(last.id)[-1]
    assert (answer.content, answer.status) == ("half an ans", "interrupted")


def test_two_windows_leave_each_other_alone(paths: Paths) -> None:
    process = window(paths)
    try:
        history = History(paths.history)
        assert history.last() is None
        (other,) = history.conversations()
        assert other.open_elsewhere
        assert not history.claim(other.id)
        assert history.messages(other.id)[-1].status == "streaming"
        mine = history.create()
        history.begin_turn(mine, "mine", "ar")
    finally:
        end(process)
    assert rows(paths, "SELECT count(*) FROM messages") == [(4,)]


def test_a_chat_left_is_free_for_others(history: History, paths: Paths) -> None:
    first = history.create()
    history.begin_turn(first, "one", "ar")
    second = history.create()
    assert history.claim(second)
    assert rows(paths, f"SELECT owner FROM conversations WHERE id = {first}") == [(None,)]


def test_a_retry_keeps_the_answer_beside_it(history: History) -> None:
    chat = history.create()
    user, answer = history.begin_turn(chat, "hello", "ar")
    history.finish(answer, "bad", "done", {})
    other = history.begin_answer(chat, "ar", parent=user)
    stored = history.messages(chat)
    assert [(item.content, item.parent) for item in stored] == [("hello", None), ("bad", user), ("", user)]
    last = history.last()
    assert last is not None
    assert last.leaf == other


def test_only_the_user_can_read_it(history: History, paths: Paths) -> None:
    history.begin_turn(history.create(), "secret", "ar")
    files = list(paths.data.iterdir())
    assert len(files) == 3  # the database and its two journal files
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(paths.data.stat().st_mode) == 0o700


def test_a_newer_schema_is_refused(history: History, paths: Paths) -> None:
    history.close()
    with sqlite3.connect(paths.history) as database:
        database.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    database.close()
    with pytest.raises(HistoryError, match="newer version"):
        History(paths.history)


def test_an_owner_is_not_mistaken_for_a_later_process() -> None:
    here = Owner.here()
    assert here.is_alive()
    assert Owner.parse(str(here)) == here
    assert not Owner(here.pid, here.started + "1", here.boot).is_alive()
    assert not Owner(here.pid, here.started, "another boot").is_alive()
    assert not Owner.parse("nonsense").is_alive()


async def recorded(path: Path, notices: list[str]) -> Recorder:
    recorder = Recorder(path, notices.append)
    await recorder.open()
    return recorder


async def test_a_damaged_file_is_kept_aside(paths: Paths) -> None:
    paths.data.mkdir()
    paths.history.write_bytes(b"this is no database, but it may be dear to somebody" * 100)
    notices: list[str] = []
    recorder = await recorded(paths.history, notices)
    (aside,) = paths.data.glob("*.damaged-*")
    assert aside.read_bytes().startswith(b"this is no database")
    assert str(aside) in notices[0]
    assert await recorder.call(lambda h: h.create(), None) == 1
    recorder.close()


async def test_damage_inside_the_file_is_found(history: History, paths: Paths) -> None:
    chat = history.create()
    for number in range(50):
        history.begin_turn(chat, f"{number} " * 500, "ar")
    history.close()
    with open(paths.history, "r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096 * 8))
    notices: list[str] = []
    recorder = await recorded(paths.history, notices)
    assert "damaged" in notices[0]
    assert len(list(paths.data.glob("history.sqlite3.damaged-*"))) == 1
    recorder.close()


async def test_a_place_that_cannot_be_written_is_a_notice(home: Path) -> None:
    (home / "data").write_text("a file where the folder should be")
    notices: list[str] = []
    recorder = await recorded(home / "data" / "history.sqlite3", notices)
    assert notices[0].startswith("this chat will not be saved")
    assert await recorder.call(lambda h: h.create(), None) == 1  # kept in memory
    recorder.close()


async def test_a_full_disk_is_reported_once_and_work_goes_on(paths: Paths) -> None:
    notices: list[str] = []
    recorder = await recorded(paths.history, notices)
    await recorder.call(lambda h: h._db.execute("PRAGMA max_page_count = 1"), None)
    chat = await recorder.call(lambda h: h.create(), None)
    text = "x" * 100_000
    for _ in range(3):
        ids = await recorder.call(lambda h: h.begin_turn(chat or 1, text, "ar"), None)
        assert ids is None
    assert len(notices) == 1
    assert "full" in notices[0]
    await recorder.call(lambda h: h._db.execute("PRAGMA max_page_count = 1000000"), None)
    assert notices[-1] == "the chat is being saved again"
    recorder.close()


async def test_closing_does_last_things_and_further_work_is_harmless(paths: Paths) -> None:
    recorder = await recorded(paths.history, [])
    recorder.close(lambda h: h.save_draft(h.create(), "unsent"))
    assert rows(paths, "SELECT draft FROM conversations") == [("unsent",)]
    assert await recorder.call(lambda h: h.last(), None) is None
    recorder.close()


async def test_partial_saves_happen_in_the_background(paths: Paths) -> None:
    recorder = await recorded(paths.history, [])
    ids = await recorder.call(lambda h: h.begin_turn(h.create(), "q", "ar"), None)
    assert ids is not None
    recorder.save_partial(ids[1], "so far")
    await asyncio.to_thread(
        until, lambda: rows(paths, f"SELECT content FROM messages WHERE id = {ids[1]}") == [("so far",)]
    )
    recorder.close()
