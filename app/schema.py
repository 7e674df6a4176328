"""The history's tables, and how a file of an earlier version becomes one of this."""

from __future__ import annotations

import sqlite3

VERSION = 2

# A message's parent is the one before it; messages with one parent are versions of each other, or branches.
# A conversation shows the path from its first message to its leaf.
_CONVERSATIONS = """
CREATE TABLE conversations (
    id INTEGER PRIMARY KEY, created REAL NOT NULL, updated REAL NOT NULL,
    title TEXT NOT NULL DEFAULT '', draft TEXT NOT NULL DEFAULT '', owner TEXT,
    leaf INTEGER, pinned INTEGER NOT NULL DEFAULT 0, deleted REAL,
    system TEXT, sampling TEXT
)"""
_MESSAGES = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY, conversation INTEGER NOT NULL REFERENCES conversations (id),
    parent INTEGER REFERENCES messages (id),
    role TEXT NOT NULL, content TEXT NOT NULL, status TEXT NOT NULL, mode TEXT, timings TEXT,
    files TEXT, created REAL NOT NULL, owner TEXT
)"""
_INDEX = "CREATE INDEX messages_of ON messages (conversation, id)"
_SETTINGS = "CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL)"


class NewerVersion(Exception):  # noqa: N818 -- what it says
    """The file was written by a later version of this program."""


def prepare(db: sqlite3.Connection) -> None:
    """Creates or upgrades the tables. To be called inside a transaction: it happens whole or not at all."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise NewerVersion
    if version == 0:
        for statement in (_CONVERSATIONS, _MESSAGES, _INDEX, _SETTINGS):
            db.execute(statement)
    elif version == 1:
        _upgrade_from_1(db)
    if version != VERSION:
        db.execute(f"PRAGMA user_version = {VERSION}")


def _upgrade_from_1(db: sqlite3.Connection) -> None:
    """Version 1 had no parents: answers that a retry replaced were marked, all others followed each other."""
    for column in (
        "leaf INTEGER",
        "pinned INTEGER NOT NULL DEFAULT 0",
        "deleted REAL",
        "system TEXT",
        "sampling TEXT",
    ):
        db.execute(f"ALTER TABLE conversations ADD COLUMN {column}")
    rows = db.execute("SELECT id, conversation, replaced FROM messages ORDER BY conversation, id").fetchall()
    db.execute("ALTER TABLE messages RENAME TO messages_1")
    db.execute("DROP INDEX messages_of")
    db.execute(_MESSAGES)
    db.execute(
        "INSERT INTO messages SELECT id, conversation, NULL, role, content, status, mode, timings, NULL, "
        "created, owner FROM messages_1"
    )
    db.execute("DROP TABLE messages_1")
    db.execute(_INDEX)
    leaves: dict[int, int] = {}
    parents = []
    for message, conversation, replaced in rows:
        parents.append((leaves.get(conversation), message))
        if not replaced:
            leaves[conversation] = message
    db.executemany("UPDATE messages SET parent = ? WHERE id = ?", parents)
    db.executemany(
        "UPDATE conversations SET leaf = ? WHERE id = ?", [(leaf, chat) for chat, leaf in leaves.items()]
    )
