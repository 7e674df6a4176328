"""Conversations in SQLite: the user's turn before the answer starts, the answer while it grows."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from app.owner import Owner
from app.text import one_line
from engine.paths import private_dir

SCHEMA_VERSION = 1
_BUSY_SECONDS = 5.0
_CHECK_BYTES = 64 << 20  # a larger file is not checked page by page at every start

Status = Literal["done", "streaming", "stopped", "interrupted", "error"]
Values = Mapping[str, float | str]  # timings, and under "end" how the answer ended

_SCHEMA = """
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY, created REAL NOT NULL, updated REAL NOT NULL,
    title TEXT NOT NULL DEFAULT '', draft TEXT NOT NULL DEFAULT '', owner TEXT
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, conversation INTEGER NOT NULL REFERENCES conversations (id),
    role TEXT NOT NULL, content TEXT NOT NULL, status TEXT NOT NULL, mode TEXT, timings TEXT,
    created REAL NOT NULL, owner TEXT, replaced INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX messages_of ON messages (conversation, id);
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class HistoryError(Exception):
    """The database cannot be used; the message says why and where it is."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """`updated` is Unix time of its last use; `open_elsewhere` when another live window writes to it."""

    id: int
    updated: float
    title: str
    draft: str
    open_elsewhere: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as it was saved."""

    id: int
    role: str
    content: str
    status: Status
    mode: str | None
    timings: Values


class History:
    """One window's connection. Every method raises sqlite3.Error when the disk or the file fails.

    A conversation and a growing answer carry the owner that writes them, so that a second window
    leaves them alone and a later one can tell an answer in progress from one its writer died on.
    """

    def __init__(self, path: Path | None) -> None:
        """Opens or creates the file at `path`; None keeps everything in memory."""
        self._owner = Owner.here()
        if path is not None:
            private_dir(path.parent)
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT, 0o600))
        self._db = sqlite3.connect(
            str(path or ":memory:"), timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare(path)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, path: Path | None) -> None:
        # A cell that was damaged is shown with its damage; it must not keep the chat from opening.
        self._db.text_factory = lambda data: data.decode("utf-8", "replace")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        if path is not None:
            # The journal files take the mode of the file they belong to.
            path.chmod(0o600)
            if path.stat().st_size <= _CHECK_BYTES:
                (verdict,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
                if verdict != "ok":
                    raise sqlite3.DatabaseError(verdict)
        with self._transaction():
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise HistoryError(f"{path} was written by a newer version of s2chat")
            if version == 0:
                for statement in _SCHEMA.split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._close_dead_work()

    def _close_dead_work(self) -> None:
        """Answers whose writer died are marked, conversations it held are let go."""
        for owner in self._owners("messages"):
            self._db.execute(
                "UPDATE messages SET status = 'interrupted', owner = NULL WHERE owner = ?", (owner,)
            )
        for owner in self._owners("conversations"):
            self._db.execute("UPDATE conversations SET owner = NULL WHERE owner = ?", (owner,))

    def _owners(self, table: str) -> list[str]:
        rows = self._db.execute(f"SELECT DISTINCT owner FROM {table} WHERE owner IS NOT NULL")
        return [owner for (owner,) in rows.fetchall() if not Owner.parse(owner).is_alive()]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    # Conversations

    def last(self) -> Conversation | None:
        """The conversation that was used last, of those that no other window has open."""
        return next((c for c in self.conversations() if not c.open_elsewhere), None)

    def conversations(self, limit: int = 200) -> list[Conversation]:
        """Newest first; those without any content are left out."""
        rows = self._db.execute(
            "SELECT id, updated, CAST(title AS TEXT), CAST(draft AS TEXT), CAST(owner AS TEXT) "
            "FROM conversations "
            "WHERE draft != '' OR EXISTS (SELECT 1 FROM messages WHERE conversation = conversations.id) "
            "ORDER BY updated DESC, id DESC LIMIT ?",
            (limit,),
        )
        return [
            Conversation(number, updated, title, draft, self._held_by_other(owner))
            for number, updated, title, draft, owner in rows.fetchall()
        ]

    def _held_by_other(self, owner: str | None) -> bool:
        return owner is not None and owner != str(self._owner) and Owner.parse(owner).is_alive()

    def create(self) -> int:
        now = time.time()
        cursor = self._db.execute(
            "INSERT INTO conversations (created, updated, owner) VALUES (?, ?, ?)",
            (now, now, str(self._owner)),
        )
        return cast(int, cursor.lastrowid)

    def claim(self, conversation: int) -> bool:
        """Makes this window the conversation's writer, letting go of its others; False when taken."""
        with self._transaction():
            row = self._db.execute("SELECT owner FROM conversations WHERE id = ?", (conversation,)).fetchone()
            if row is None or self._held_by_other(row[0]):
                return False
            self.release()
            # Opening counts as use: the next start shows what was open at the end of this one.
            self._db.execute(
                "UPDATE conversations SET owner = ?, updated = ? WHERE id = ?",
                (str(self._owner), time.time(), conversation),
            )
        return True

    def release(self) -> None:
        self._db.execute("UPDATE conversations SET owner = NULL WHERE owner = ?", (str(self._owner),))

    def save_draft(self, conversation: int, draft: str) -> None:
        self._db.execute(
            "UPDATE conversations SET draft = ?, updated = ? WHERE id = ?", (draft, time.time(), conversation)
        )

    # Messages

    def messages(self, conversation: int) -> list[Stored]:
        """What the conversation shows, oldest first: answers that a retry replaced are left out."""
        rows = self._db.execute(
            "SELECT id, role, CAST(content AS TEXT), status, CAST(mode AS TEXT), CAST(timings AS TEXT) "
            "FROM messages WHERE conversation = ? AND NOT replaced ORDER BY id",
            (conversation,),
        )
        return [
            Stored(number, role, content, status, mode, _timings(timings))
            for number, role, content, status, mode, timings in rows.fetchall()
        ]

    def begin_turn(self, conversation: int, prompt: str, mode: str) -> tuple[int, int]:
        """Stores the user's turn and an empty answer at once, and empties the draft; their ids."""
        with self._transaction():
            user = self._insert(conversation, "user", prompt, "done", None)
            answer = self._insert(conversation, "assistant", "", "streaming", mode)
            self._name(conversation, prompt)
            self._db.execute("UPDATE conversations SET draft = '' WHERE id = ?", (conversation,))
        return user, answer

    def add(
        self, conversation: int, role: str, content: str, status: Status, mode: str | None, timings: Values
    ) -> int:
        """Stores a message that is over."""
        with self._transaction():
            message = self._insert(conversation, role, content, status, mode)
            self.finish(message, content, status, timings)
            if role == "user":
                self._name(conversation, content)
        return message

    def _name(self, conversation: int, prompt: str) -> None:
        self._db.execute(
            "UPDATE conversations SET updated = ?, "
            "title = CASE title WHEN '' THEN ? ELSE title END WHERE id = ?",
            (time.time(), one_line(prompt, 60), conversation),
        )

    def begin_retry(self, conversation: int, replaced: int, mode: str) -> int:
        """A new empty answer in the place of `replaced`, which is kept but no longer shown."""
        with self._transaction():
            self._db.execute("UPDATE messages SET replaced = 1 WHERE id = ?", (replaced,))
            return self._insert(conversation, "assistant", "", "streaming", mode)

    def _insert(self, conversation: int, role: str, content: str, status: Status, mode: str | None) -> int:
        owner = str(self._owner) if status == "streaming" else None
        cursor = self._db.execute(
            "INSERT INTO messages (conversation, role, content, status, mode, created, owner) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (conversation, role, content, status, mode, time.time(), owner),
        )
        return cast(int, cursor.lastrowid)

    def save_partial(self, message: int, content: str) -> None:
        self._db.execute("UPDATE messages SET content = ? WHERE id = ?", (content, message))

    def finish(self, message: int, content: str, status: Status, timings: Values) -> None:
        self._db.execute(
            "UPDATE messages SET content = ?, status = ?, timings = ?, owner = NULL WHERE id = ?",
            (content, status, json.dumps(timings), message),
        )

    # Settings

    def setting(self, key: str, default: str = "") -> str:
        row = self._db.execute("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
        return str(row[0]) if row else default

    def set_setting(self, key: str, value: str) -> None:
        self._db.execute(
            "INSERT INTO settings VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            (key, value),
        )

    def close(self) -> None:
        try:
            self.release()
        finally:
            self._db.close()


def _timings(text: str | None) -> Values:
    """What can be used of a message's timings."""
    try:
        values = json.loads(text or "{}")
    except ValueError:
        return {}
    pairs = values.items() if isinstance(values, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str if name == "end" else (int, float))}
