"""Finds chats by words in their titles and messages, with SQLite's full-text search.

The index holds every three letters of a message (FTS5's trigram tokenizer), so that parts of words are found,
and scripts without spaces. Words of one or two letters, and SQLite without that tokenizer, take a plain scan.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass

from engine.thoughts import split

_TABLE = (
    "CREATE VIRTUAL TABLE found USING fts5(content, content='messages', content_rowid='id', "
    "tokenize='trigram')"
)
_ADD = "INSERT INTO found (rowid, content) SELECT new.id, new.content WHERE new.status != 'streaming'"
_DROP = (
    "INSERT INTO found (found, rowid, content) "
    "SELECT 'delete', old.id, old.content WHERE old.status != 'streaming'"
)
# An answer that grows is saved twice a second; it is indexed once it is over.
_TRIGGERS = {
    "found_insert": f"CREATE TRIGGER found_insert AFTER INSERT ON messages BEGIN {_ADD}; END",
    "found_delete": f"CREATE TRIGGER found_delete AFTER DELETE ON messages BEGIN {_DROP}; END",
    "found_update": "CREATE TRIGGER found_update AFTER UPDATE OF content, status ON messages "
    "WHEN old.content IS NOT new.content OR (old.status = 'streaming') != (new.status = 'streaming') "
    f"BEGIN {_DROP}; {_ADD}; END",
}
_WORD = 3
_AROUND = 30  # characters shown before a match
_EXCERPT = 120


@dataclass(frozen=True, slots=True)
class Hit:
    """A conversation in which every word was found, and where: a piece of its latest message that has one."""

    conversation: int
    excerpt: str


def prepare(db: sqlite3.Connection) -> bool:
    """Creates the index where it is missing. False when this SQLite cannot have one. In a transaction."""
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE name LIKE 'found%'")}
    try:
        if "found" not in names:
            db.execute(_TABLE)
        db.execute("SELECT count(*) FROM found WHERE found MATCH '\"xyz\"'")
    except sqlite3.OperationalError:
        for name in _TRIGGERS:  # they would make every message fail
            db.execute(f"DROP TRIGGER IF EXISTS {name}")
        return False
    missing = [sql for name, sql in _TRIGGERS.items() if name not in names]
    for sql in missing:
        db.execute(sql)
    if missing:  # it is new, or messages came without it
        db.execute("INSERT INTO found (found) VALUES ('delete-all')")
        db.execute(
            "INSERT INTO found (rowid, content) SELECT id, content FROM messages WHERE status != 'streaming'"
        )
    return True


def search(db: sqlite3.Connection, query: str, *, indexed: bool, limit: int = 200) -> list[Hit]:
    """Conversations whose title or messages hold every word of `query`, in any place; the last used first.

    Case does not matter, except beyond ASCII where the index is not used.
    """
    words = query.split()
    if not words:
        return []
    kept: dict[int, list[str]] | None = None
    for word in words:
        hits = _titles(db, word)
        for conversation, content in _messages(db, word, indexed):
            hits[conversation] = content
        kept = _both(kept, hits)
    assert kept is not None
    order = [
        number
        for (number,) in db.execute(
            "SELECT id FROM conversations WHERE deleted IS NULL ORDER BY pinned DESC, updated DESC, id DESC"
        )
    ]
    return [Hit(number, _excerpt(kept[number], words)) for number in order if number in kept][:limit]


def _both(kept: dict[int, list[str]] | None, hits: dict[int, str]) -> dict[int, list[str]]:
    """Conversations that have the words so far and the next one, with a text for each."""
    if kept is None:
        return {number: [text] for number, text in hits.items()}
    return {number: [*texts, hits[number]] for number, texts in kept.items() if number in hits}


def _excerpt(texts: list[str], words: list[str]) -> str:
    """A piece of the first text that holds one of `words`, around it."""
    texts = [" ".join(part for part in split(text) if part) for text in texts]  # no tags of thoughts
    for text in texts:
        folded = text.casefold()
        for word in words:
            at = folded.find(word.casefold())
            if at >= 0:
                start = max(0, at - _AROUND)
                return ("…" if start else "") + text[start : start + _EXCERPT]
    return texts[0][:_EXCERPT] if texts else ""


def _titles(db: sqlite3.Connection, word: str) -> dict[int, str]:
    rows = db.execute(
        "SELECT id, CAST(title AS TEXT) FROM conversations WHERE title LIKE ? ESCAPE '\\'", (_like(word),)
    )
    return dict(rows.fetchall())


def _messages(db: sqlite3.Connection, word: str, indexed: bool) -> list[tuple[int, str]]:
    """(conversation, content) of the messages that hold `word`, earlier ones first."""
    if indexed and len(word) >= _WORD:
        phrase = '"' + word.replace('"', '""') + '"'
        with contextlib.suppress(sqlite3.OperationalError):  # a damaged index; the messages are there
            return db.execute(
                "SELECT conversation, CAST(messages.content AS TEXT) FROM found "
                "JOIN messages ON messages.id = found.rowid WHERE found MATCH ? ORDER BY messages.id",
                (phrase,),
            ).fetchall()
    return db.execute(
        "SELECT conversation, CAST(content AS TEXT) FROM messages "
        "WHERE content LIKE ? ESCAPE '\\' ORDER BY id",
        (_like(word),),
    ).fetchall()


def _like(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
