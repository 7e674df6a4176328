"""A chat as a file: Markdown to read, JSON with every version to keep; and back."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.entry import CUT
from app.history import File, Status
from app.lossy import mode_words
from app.text import one_line
from engine.errors import BadRequest, S2Error
from engine.paths import private_dir
from engine.request import is_lossy
from engine.thoughts import split

if TYPE_CHECKING:
    from app.conversation import Conversation
    from app.entry import Entry
    from app.history import History

_FORMAT = "s2chat-chat"
_VERSION = 1
_LIMIT_BYTES = 256 << 20
_ROLES = {"user", "assistant", CUT}
_ENDS: dict[str, Status] = {"stopped": "stopped", "interrupted": "interrupted", "error": "error"}
_LOSSY = re.compile(r"\A\*mode (\S+) ≈lossy\*\s*")
_HEADING = re.compile(r"^## (You|Answer)[^\S\n]*$", re.MULTILINE)


def markdown(chat: Conversation) -> str:
    """The path that is shown. Headings of level two part the messages; those inside become level three."""
    parts = [f"# {one_line(chat.title) or 'Chat'}"]
    if chat.system:
        parts.append(f"> {chat.system}".replace("\n", "\n> "))
    for entry in chat.entries:
        if entry.role == CUT:
            parts.append(f"*{entry.view.text}*")
        elif entry.text or entry.files:
            parts += [f"## {'You' if entry.role == 'user' else 'Answer'}", _body(entry)]
    return "\n\n".join(parts) + "\n"


def _body(entry: Entry) -> str:
    thoughts, answer = ("", entry.told) if entry.role == "user" else split(entry.text)
    mark = f"*mode {mode_words(entry.mode)}*\n\n" if is_lossy(entry.mode) else ""
    folded = f"<details><summary>Thoughts</summary>\n\n{thoughts}\n\n</details>\n\n" if thoughts else ""
    return mark + folded + _HEADING.sub(r"### \1", answer)


def as_json(chat: Conversation) -> str:
    """Every message with all its versions; a parent is the number of the message before it in `messages`."""
    number = {id(entry): at for at, entry in enumerate(chat.all)}
    messages = [
        {
            "parent": None if entry.parent is None else number[id(entry.parent)],
            "role": entry.role,
            "content": entry.text,
            "status": "stopped" if entry.status == "streaming" else entry.status,
            "mode": entry.mode,
            "exact": not is_lossy(entry.mode) if entry.mode else None,
            "timings": dict(entry.values),
            "files": [asdict(file) for file in entry.files],
        }
        for entry in chat.all
    ]
    whole = {
        "format": _FORMAT,
        "version": _VERSION,
        "title": chat.title,
        "system": chat.system,
        "sampling": chat.sampling,
        "shown": None if chat.leaf is None else number[id(chat.leaf)],
        "messages": messages,
    }
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def write(chat: Conversation, path: Path) -> None:
    """Writes `chat` to a new file; its ending says how. Raises S2Error, also where a file is already."""
    text = as_json(chat) if path.suffix.lower() == ".json" else markdown(chat)
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise BadRequest(f"{path} is there already", hint="name another file") from None
    except OSError as error:
        raise S2Error(f"{path} cannot be written: {error.strerror or error}") from None


def default_path(folder: Path, title: str, ending: str) -> Path:
    """A name that is free in `folder`, which is made where it is missing."""
    private_dir(folder)
    words = re.sub(r"[^\w-]+", "-", one_line(title, 40)).strip("-_") or "chat"
    name = f"{time.strftime('%Y-%m-%d')}-{words}"
    free = (f"{name}{'' if n == 1 else f'-{n}'}.{ending}" for n in range(1, 10_000))
    return next(path for path in (folder / each for each in free) if not path.exists())


def read(path: Path) -> dict[str, Any]:
    """The chat in a file that `write` made, or any Markdown with its headings, checked, ready for `store`.

    Raises S2Error with the reason when it is none.
    """
    try:
        if not path.is_file():
            raise BadRequest(f"{path} is not a file" if path.exists() else f"there is no file {path}")
        if path.stat().st_size > _LIMIT_BYTES:
            raise BadRequest(f"{path} is too large to be a chat")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise S2Error(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadRequest(f"{path} is not a text file in UTF-8") from None
    found = _from_json(text, path) if text.lstrip().startswith("{") else _from_markdown(text)
    if not found["messages"]:
        raise BadRequest(f"{path} has no messages", hint='expected are headings "## You" and "## Answer"')
    return found


def _from_markdown(text: str) -> dict[str, Any]:
    head, *parts = _HEADING.split(text)
    messages: list[dict[str, Any]] = []
    for role, body in zip(parts[::2], parts[1::2], strict=True):
        parent = len(messages) - 1 if messages else None
        lossy = _LOSSY.match(body.strip())
        message = _message("user" if role == "You" else "assistant", _LOSSY.sub("", body.strip()), parent)
        messages.append({**message, "mode": lossy[1] if lossy else None})
    title = re.search(r"^# (.+)$", head, re.MULTILINE)
    system = [line[2:] for line in head.splitlines() if line.startswith("> ")]
    return {
        "title": one_line(title[1]) if title else "",
        "system": "\n".join(system) or None,
        "sampling": {},
        "shown": len(messages) - 1,
        "messages": messages,
    }


def _message(role: str, content: str, parent: int | None) -> dict[str, Any]:
    return {
        "parent": parent,
        "role": role,
        "content": content,
        "status": "done",
        "mode": None,
        "timings": {},
        "files": (),
    }


def _from_json(text: str, path: Path) -> dict[str, Any]:
    try:
        whole = json.loads(text)
        if whole.get("format") != _FORMAT:
            raise BadRequest(f"{path} is no chat of this program")
        if whole["version"] > _VERSION:
            raise BadRequest(f"{path} was written by a newer version of s2chat")
        messages = [_checked(message, at) for at, message in enumerate(whole["messages"])]
        shown = whole.get("shown")
        return {
            "title": one_line(str(whole.get("title") or "")),
            "system": None if whole.get("system") is None else str(whole["system"]),
            "sampling": {
                k: v for k, v in (whole.get("sampling") or {}).items() if isinstance(v, (int, float))
            },
            "shown": shown if isinstance(shown, int) and 0 <= shown < len(messages) else len(messages) - 1,
            "messages": messages,
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(f"{path} is damaged: {error}") from None


def _checked(message: dict[str, Any], at: int) -> dict[str, Any]:
    role, parent = message["role"], message.get("parent")
    if role not in _ROLES or not (parent is None or (isinstance(parent, int) and 0 <= parent < at)):
        raise ValueError(f"message {at} has role {role!r} and parent {parent!r}")
    files: Sequence[dict[str, Any]] = message.get("files") or ()
    return {
        **_message(role, str(message["content"]), parent),
        "status": _ENDS.get(str(message.get("status")), "done"),
        "mode": None if message.get("mode") is None else str(message["mode"]),
        "timings": dict(message.get("timings") or {}),
        "files": tuple(File(str(file["name"]), str(file["text"]), file.get("tokens")) for file in files),
    }


def store(history: History, chat: dict[str, Any]) -> int:
    """Stores what `read` gave as a chat of its own; its number."""
    number = history.create()
    ids: list[int] = []
    for message in chat["messages"]:
        at = message["parent"]
        ids.append(
            history.add(
                number,
                message["role"],
                message["content"],
                message["status"],
                message["mode"],
                message["timings"],
                parent=None if at is None else ids[at],
                files=message["files"],
            )
        )
    if chat["title"]:
        history.rename(number, chat["title"])
    if chat["system"] is not None:
        history.set_system(number, chat["system"])
    if chat["sampling"]:
        history.set_sampling(number, chat["sampling"])
    history.show(number, ids[chat["shown"]])
    return number
