"""Conversations in SQLite: the user's turn before the answer starts, the answer while it grows."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from app import schema, search
from app.owner import Owner
from app.text import one_line
from engine.paths import private_dir

_BUSY_SECONDS = 5.0
_KEPT_S = 7 * 24 * 3600.0  # how long a deleted chat can be brought back
_CHECK_BYTES = 64 << 20  # a larger file is not checked page by page at every start

Status = Literal["done", "streaming", "stopped", "interrupted", "error"]
Values = Mapping[str, float | str]  # timings, and under "end" how the answer ended

LEAF = -1  # as a parent: the last message of the path that the conversation shows


class HistoryError(Exception):
    """The database cannot be used; the message says why and where it is."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """`updated` is Unix time of its last use; `open_elsewhere` when another live window writes to it.

    `leaf` is the last message of the path it shows; `system` its system prompt, None for the program's own;
    `sampling` the settings it changed.
    """

    id: int
    updated: float
    title: str
    draft: str
    open_elsewhere: bool
    pinned: bool = False
    leaf: int | None = None
    system: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class File:
    """A text file that was attached to a message."""

    name: str
    text: str
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as it was saved; `parent` is the message before it, None for the first."""

    id: int
    parent: int | None
    role: str
    content: str
    status: Status
    mode: str | None
    timings: Values
    files: tuple[File, ...] = ()


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
            try:
                schema.prepare(self._db)
            except schema.NewerVersion:
                raise HistoryError(f"{path} was written by a newer version of s2chat") from None
            self._indexed = search.prepare(self._db)
        self._close_dead_work()
        self._purge()

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
        free = [c for c in self.conversations() if not c.open_elsewhere]
        return max(free, key=lambda c: (c.updated, c.id), default=None)

    def conversations(self, limit: int = 200) -> list[Conversation]:
        """Pinned ones first, then the last used; those without any content are left out."""
        return self._conversations(
            "deleted IS NULL AND (draft != '' OR "
            "EXISTS (SELECT 1 FROM messages WHERE conversation = conversations.id)) "
            "ORDER BY pinned DESC, updated DESC, id DESC LIMIT ?",
            limit,
        )

    def conversation(self, number: int) -> Conversation | None:
        return next(iter(self._conversations("id = ?", number)), None)

    def search(self, query: str) -> list[tuple[Conversation, str]]:
        """Conversations that hold every word of `query`, each with a piece of text that has one."""
        hits = search.search(self._db, query, indexed=self._indexed)
        found = ((self.conversation(hit.conversation), hit.excerpt) for hit in hits)
        return [(conversation, excerpt) for conversation, excerpt in found if conversation is not None]

    def _conversations(self, condition: str, value: int) -> list[Conversation]:
        rows = self._db.execute(
            "SELECT id, updated, CAST(title AS TEXT), CAST(draft AS TEXT), CAST(owner AS TEXT), pinned, "
            f"leaf, CAST(system AS TEXT), CAST(sampling AS TEXT) FROM conversations WHERE {condition}",
            (value,),
        )
        return [
            Conversation(
                number,
                updated,
                title,
                draft,
                self._held_by_other(owner),
                bool(pinned),
                leaf,
                system,
                {name: value for name, value in _object(sampling).items() if isinstance(value, (int, float))},
            )
            for number, updated, title, draft, owner, pinned, leaf, system, sampling in rows.fetchall()
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

    def rename(self, conversation: int, title: str) -> None:
        self._db.execute("UPDATE conversations SET title = ? WHERE id = ?", (title, conversation))

    def pin(self, conversation: int, pinned: bool) -> None:
        self._db.execute("UPDATE conversations SET pinned = ? WHERE id = ?", (pinned, conversation))

    def set_system(self, conversation: int, system: str | None) -> None:
        self._db.execute("UPDATE conversations SET system = ? WHERE id = ?", (system, conversation))

    def set_sampling(self, conversation: int, sampling: Mapping[str, float]) -> None:
        text = json.dumps(dict(sampling))
        self._db.execute("UPDATE conversations SET sampling = ? WHERE id = ?", (text, conversation))

    def delete(self, conversation: int) -> bool:
        """Hides it; `restore` brings it back for a week. False when another window has it open."""
        with self._transaction():
            row = self._db.execute("SELECT owner FROM conversations WHERE id = ?", (conversation,)).fetchone()
            if row is None or self._held_by_other(row[0]):
                return False
            self._db.execute(
                "UPDATE conversations SET deleted = ?, owner = NULL WHERE id = ?", (time.time(), conversation)
            )
        return True

    def restore(self) -> Conversation | None:
        """Brings back what was deleted last."""
        with self._transaction():
            row = self._db.execute(
                "SELECT id FROM conversations WHERE deleted IS NOT NULL "
                "ORDER BY deleted DESC, id DESC LIMIT 1"
            ).fetchone()
            if row is None:
                return None
            self._db.execute("UPDATE conversations SET deleted = NULL WHERE id = ?", row)
        return self.conversation(row[0])

    def _purge(self) -> None:
        """Chats that were deleted a week ago are gone for good."""
        with self._transaction():
            gone = (time.time() - _KEPT_S,)
            self._db.execute(
                "DELETE FROM messages WHERE conversation IN (SELECT id FROM conversations WHERE deleted < ?)",
                gone,
            )
            self._db.execute("DELETE FROM conversations WHERE deleted < ?", gone)

    # Messages

    def messages(self, conversation: int) -> list[Stored]:
        """Every message of the conversation in the order of writing, all versions and branches."""
        rows = self._db.execute(
            "SELECT id, parent, role, CAST(content AS TEXT), status, CAST(mode AS TEXT), "
            "CAST(timings AS TEXT), CAST(files AS TEXT) FROM messages WHERE conversation = ? ORDER BY id",
            (conversation,),
        )
        return [
            Stored(number, parent, role, content, status, mode, _timings(timings), _files(files))
            for number, parent, role, content, status, mode, timings, files in rows.fetchall()
        ]

    def begin_turn(
        self,
        conversation: int,
        prompt: str,
        mode: str,
        *,
        parent: int | None = LEAF,
        files: Sequence[File] = (),
    ) -> tuple[int, int]:
        """Stores the user's turn and an empty answer at once, and empties the draft; their ids."""
        with self._transaction():
            user = self._insert(conversation, "user", prompt, "done", None, parent, files)
            answer = self._insert(conversation, "assistant", "", "streaming", mode, user)
            self._name(conversation, prompt)
            self._db.execute("UPDATE conversations SET draft = '' WHERE id = ?", (conversation,))
        return user, answer

    def begin_answer(self, conversation: int, mode: str, *, parent: int | None) -> int:
        """An empty answer to `parent`, beside those it may have already."""
        with self._transaction():
            return self._insert(conversation, "assistant", "", "streaming", mode, parent)

    def resume(self, message: int, mode: str) -> None:
        """An answer that had ended goes on, which makes its mode `mode`."""
        self._db.execute(
            "UPDATE messages SET status = 'streaming', owner = ?, mode = ? WHERE id = ?",
            (str(self._owner), mode, message),
        )

    def add(
        self,
        conversation: int,
        role: str,
        content: str,
        status: Status,
        mode: str | None,
        timings: Values,
        *,
        parent: int | None = LEAF,
        files: Sequence[File] = (),
    ) -> int:
        """Stores a message that is over."""
        with self._transaction():
            message = self._insert(conversation, role, content, status, mode, parent, files)
            self.finish(message, content, status, timings)
            if role == "user":
                self._name(conversation, content)
        return message

    def show(self, conversation: int, leaf: int | None) -> None:
        """The path that ends at `leaf` is the one that is shown."""
        self._db.execute("UPDATE conversations SET leaf = ? WHERE id = ?", (leaf, conversation))

    def _name(self, conversation: int, prompt: str) -> None:
        self._db.execute(
            "UPDATE conversations SET updated = ?, "
            "title = CASE title WHEN '' THEN ? ELSE title END WHERE id = ?",
            (time.time(), one_line(prompt, 60), conversation),
        )

    def _insert(
        self,
        conversation: int,
        role: str,
        content: str,
        status: Status,
        mode: str | None,
        parent: int | None,
        files: Sequence[File] = (),
    ) -> int:
        if parent == LEAF:
            row = self._db.execute("SELECT leaf FROM conversations WHERE id = ?", (conversation,)).fetchone()
            parent = row[0] if row else None
        owner = str(self._owner) if status == "streaming" else None
        attached = json.dumps([asdict(file) for file in files]) if files else None
        cursor = self._db.execute(
            "INSERT INTO messages (conversation, parent, role, content, status, mode, files, created, owner) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (conversation, parent, role, content, status, mode, attached, time.time(), owner),
        )
        message = cast(int, cursor.lastrowid)
        self.show(conversation, message)
        return message

    def save_partial(self, message: int, content: str) -> None:
        self._db.execute("UPDATE messages SET content = ? WHERE id = ?", (content, message))

    def finish(
        self, message: int, content: str, status: Status, timings: Values, mode: str | None = None
    ) -> None:
        """`mode`: the one it was written in, None for that it was begun in."""
        self._db.execute(
            "UPDATE messages SET content = ?, status = ?, timings = ?, mode = COALESCE(?, mode), "
            "owner = NULL WHERE id = ?",
            (content, status, json.dumps(timings), mode, message),
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
    pairs = _object(text).items()
    return {name: value for name, value in pairs if isinstance(value, str if name == "end" else (int, float))}


def _object(text: str | None) -> dict[str, Any]:
    """The JSON object in a cell; an empty one where it is damaged."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _files(text: str | None) -> tuple[File, ...]:
    try:
        return tuple(
            File(str(file["name"]), str(file["text"]), file.get("tokens"))
            for file in json.loads(text or "[]")
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()
