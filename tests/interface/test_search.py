"""Search, versions on disk, and files of the earlier version."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from support import rows

from app import schema, search
from app.history import File, History
from engine.paths import Paths
from engine.thoughts import MARKS

OLD = Path(__file__).parent / "data" / "history-1.sql"


@pytest.fixture
def history(paths: Paths) -> History:
    return History(paths.history)


def said(history: History, question: str, answer: str) -> int:
    chat = history.create()
    _, message = history.begin_turn(chat, question, "ar")
    history.finish(message, answer, "done", {})
    return chat


def found(history: History, query: str) -> list[int]:
    return [chat.id for chat, _ in history.search(query)]


@pytest.mark.parametrize(
    ("query", "hits"),
    [
        ("tides", [1]),
        ("TIDE moon", [1]),
        ("tides bread", []),
        ("ide", [1]),  # a part of a word
        ("猫", [2]),
        ("こんにちは", [2]),
        ("100%", [3]),
        ('"quoted', [3]),
        ("x_y", [3]),
        ("a", [3, 2, 1]),
        ("*", []),
        ("NOT moon", []),
        ("", []),
    ],
)
@pytest.mark.parametrize("indexed", [True, False])
def test_every_word_is_found_as_it_is_written(
    history: History, query: str, hits: list[int], indexed: bool
) -> None:
    said(history, "Why are there tides?", "Because of the Moon, and a little of the sun.")
    said(history, "say a cat", "猫 こんにちは [b]")
    said(history, 'a "quoted" word', "100% of x_y")
    assert history._indexed
    history._indexed = indexed
    for chat in (1, 2, 3):
        history._db.execute("UPDATE conversations SET updated = id WHERE id = ?", (chat,))
    assert found(history, query) == hits
    if hits and query:
        assert query.split()[0].casefold() in history.search(query)[0][1].casefold()


def test_the_index_follows_an_answer_that_grows_and_goes_on(history: History) -> None:
    chat = history.create()
    _, answer = history.begin_turn(chat, "question", "ar")
    history.save_partial(answer, "half of it zebra")
    assert found(history, "zebra") == []  # once it is over
    history.finish(answer, "half of it giraffe", "stopped", {})
    assert (found(history, "zebra"), found(history, "giraffe")) == ([], [chat])
    history.resume(answer, "ar")
    history.save_partial(answer, "half of it giraffe and")
    history.finish(answer, "half of it giraffe and whole", "done", {})
    assert found(history, "giraffe whole") == [chat]
    history._db.execute("INSERT INTO found (found) VALUES ('integrity-check')")


def test_thoughts_are_found_and_their_tags_not_shown(history: History) -> None:
    said(history, "a question", f"{MARKS[0]}the moon pulls{MARKS[1]}\nBecause of the tides.")
    said(history, "another", "<think>the moon again</think>Yes.")
    assert [text for _, text in history.search("moon")] == [
        "the moon again Yes.",
        "the moon pulls Because of the tides.",
    ]
    assert not found(history, "thought")


def test_deleted_chats_are_not_found_and_come_back(history: History, paths: Paths) -> None:
    chat = said(history, "delete [me]", "gone")
    assert history.delete(chat)
    assert (found(history, "gone"), history.conversations(), history.last()) == ([], [], None)
    back = history.restore()
    assert back is not None
    assert (back.id, found(history, "gone")) == (chat, [chat])
    assert history.restore() is None
    history.delete(chat)
    history._db.execute("UPDATE conversations SET deleted = deleted - 8 * 86400")
    history.close()
    later = History(paths.history)
    assert rows(paths, "SELECT (SELECT count(*) FROM messages), (SELECT count(*) FROM conversations)") == [
        (0, 0)
    ]
    later._db.execute("INSERT INTO found (found) VALUES ('integrity-check')")
    later.close()


def test_a_pinned_chat_stays_on_top(history: History) -> None:
    first, second = said(history, "one", "1"), said(history, "two", "2")
    history.pin(first, True)
    history.rename(second, "renamed")
    assert [(chat.id, chat.pinned, chat.title) for chat in history.conversations()] == [
        (first, True, "one"),
        (second, False, "renamed"),
    ]
    last = history.last()
    assert last is not None
    assert last.id == second  # pinning is not using


def test_files_settings_and_paths_survive(history: History, paths: Paths) -> None:
    chat = history.create()
    user, one = history.begin_turn(chat, "look", "ar", files=[File("a.txt", "text [b]", 7)])
    two = history.begin_answer(chat, "ar", parent=user)
    history.show(chat, one)
    history.set_system(chat, "Be brief.")
    history.set_sampling(chat, {"temperature": 0.5, "top_k": 3})
    history.close()
    later = History(paths.history)
    stay = later.conversation(chat)
    assert stay is not None
    assert (stay.leaf, stay.system, stay.sampling) == (one, "Be brief.", {"temperature": 0.5, "top_k": 3})
    stored = later.messages(chat)
    assert [(item.id, item.parent) for item in stored] == [(user, None), (one, user), (two, user)]
    assert stored[0].files == (File("a.txt", "text [b]", 7),)
    later.close()


def old_file(paths: Paths) -> dict[str, list[tuple[object, ...]]]:
    """A file as the first version left it; its rows."""
    paths.data.mkdir()
    with contextlib.closing(sqlite3.connect(paths.history)) as database:
        database.executescript(OLD.read_text())
        database.execute("PRAGMA journal_mode = WAL")
        messages = "SELECT id, conversation, role, content, mode, timings, created FROM messages ORDER BY id"
        chats = "SELECT id, created, updated, title, draft FROM conversations ORDER BY id"
        return {
            query: database.execute(query).fetchall() for query in (messages, chats, "SELECT * FROM settings")
        }


def test_a_file_of_the_first_version_loses_nothing(paths: Paths) -> None:
    before = old_file(paths)
    history = History(paths.history)
    for query, known in before.items():
        assert rows(paths, query) == known
    assert rows(paths, "PRAGMA user_version") == [(schema.VERSION,)]
    chat, refused, draft = (history.conversation(number) for number in (1, 2, 3))
    assert chat is not None
    assert refused is not None
    assert draft is not None
    stored = {item.id: item for item in history.messages(1)}
    path, at = [], chat.leaf
    while at is not None:
        path.append(stored[at].content)
        at = stored[at].parent
    assert path[::-1] == ["Name a colour [b].", "Green.", "Another one.", "Yellow."]
    # Answers that were asked for again were hidden; now they are versions.
    question = stored[1].id
    assert [item.content for item in stored.values() if item.parent == question] == [
        "Red.\n\n猫 こんにちは",
        "Blue.",
        "Green.",
    ]
    assert (chat.draft, draft.draft) == ("unsent 猫\nline", "only a draft")
    assert [item.status for item in history.messages(2)] == ["error", "error", "done", "interrupted"]
    assert found(history, "猫 こんにちは") == [1]
    assert history.setting("theme") == "nord"
    history.close()
    History(paths.history).close()  # once is enough


def test_an_upgrade_that_fails_leaves_the_file_as_it_was(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = old_file(paths)

    def fail(_: sqlite3.Connection) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(search, "prepare", fail)
        with pytest.raises(sqlite3.OperationalError):
            History(paths.history)
    assert rows(paths, "PRAGMA user_version") == [(1,)]
    for query, known in before.items():
        assert rows(paths, query) == known
    History(paths.history).close()
    assert rows(paths, "PRAGMA user_version") == [(schema.VERSION,)]
