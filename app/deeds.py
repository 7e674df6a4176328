"""Everything the chat can do: one table for keys, the command palette, slash commands and the help."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app import export
from app.text import one_line
from engine.errors import S2Error
from engine.request import EFFORTS

if TYPE_CHECKING:
    from app.chat import ChatApp

Run = Callable[["ChatApp", str], Awaitable[None]]

_ALL = "… F1 shows all"
_COMMAND = re.compile(r"/([a-z]+)(?:[ \n]+(.*))?\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Deed:
    """`name` is typed behind a slash, `title` is in the palette, `shown` is the key as the help writes it.

    `takes` names what may follow the command. `anytime`: also while an answer is written.
    """

    name: str
    title: str
    run: Run
    keys: str = ""
    shown: str = ""
    takes: str = ""
    words: str = ""
    anytime: bool = False


async def _again(app: ChatApp, _: str) -> None:
    await app.turns.again(app.turns.chosen)


async def _go_on(app: ChatApp, _: str) -> None:
    await app.turns.go_on(app.turns.chosen)


async def _edit(app: ChatApp, _: str) -> None:
    app.turns.edit(app.turns.chosen)


async def _version(app: ChatApp, word: str) -> None:
    await app.turns.version(1 if word in ("next", "+") else -1)


async def _rename(app: ChatApp, title: str) -> None:
    chat = app.chats.open
    if not title or chat.id is None:
        app.hint("/rename TITLE names this chat." if chat.id is not None else "There is no chat to name yet.")
        return
    await app.chats.rename(chat.id, one_line(title, 200))
    app.hint(f"This chat is now: {one_line(title, 60)}")


async def _pin(app: ChatApp, _: str) -> None:
    chat = app.chats.open
    if chat.id is not None:
        await app.chats.pin(chat.id, not chat.pinned)
        app.hint("Pinned: it stays at the top of the list." if chat.pinned else "No longer pinned.")


async def _delete(app: ChatApp, _: str) -> None:
    chat = app.chats.open
    if chat.id is None or not chat.entries:
        app.hint("There is no chat to delete yet.")
    elif await app.chats.delete(chat.id):
        app.show_chat("")
        app.hint("Deleted. /undo brings it back, for a week.")


async def _undo(app: ChatApp, _: str) -> None:
    chat = await app.chats.undelete()
    if chat is None:
        app.hint("Nothing was deleted in the last week.")
    elif await app.opening.switch(chat):
        app.hint(f"Back: {one_line(chat.title, 60)}")


async def _export(app: ChatApp, words: str) -> None:
    chat = app.chats.open
    if not chat.entries:
        app.hint("There is nothing to export yet.")
        return
    ending = "json" if words.strip() == "json" else "md"
    try:
        if words.strip() in ("", "md", "markdown", "json"):
            path = export.default_path(app.paths.data / "exports", chat.title or chat.entries[0].text, ending)
        else:
            path = Path(words.strip()).expanduser().absolute()
        export.write(chat, path)
    except (S2Error, OSError) as error:
        app.notice(error.line() if isinstance(error, S2Error) else str(error))
        return
    app.notice(f"Exported to {path}")


async def _import(app: ChatApp, words: str) -> None:
    if not words:
        await app.opening.ask_file("Import a chat", "JSON of /export, or Markdown", "import")
        return
    try:
        chat = export.read(Path(words.strip()).expanduser())
    except S2Error as error:
        app.notice(error.line())
        return
    number = await app.chats.recorder.call(lambda history: export.store(history, chat), None)
    if number is not None:
        await app.opening.number(number)


async def _attach(app: ChatApp, words: str) -> None:
    if not words:
        await app.opening.ask_file("Attach a text file", "it goes along with your next message", "attach")
    else:
        await app.opening.attach(Path(words.strip()))


async def _detach(app: ChatApp, _: str) -> None:
    app.attachments.take()
    app.label()


async def _thoughts(app: ChatApp, word: str) -> None:
    if word:
        name = "reasoning_effort" if word in EFFORTS else "thinking"
        await app.tuning.sampling(f"{name} {({'on': '1', 'off': '0'}).get(word, word)}")
    else:
        app.turns.fold_thoughts()


async def _budget(app: ChatApp, wish: str) -> None:
    if wish and app.link.offer.is_remote:
        app.hint("The budget of an engine elsewhere is set on its machine.")
        return
    try:
        app.notice(await app.tuning.budget(wish) if wish else app.board.memory_words)
    except S2Error as error:
        app.notice(error.line())


async def _machine(app: ChatApp, _: str) -> None:
    from app.machine import MachinePanel  # few open it, and it takes the probes along

    if app.turns.chosen is not None:
        app.turns.choose(None)  # the keys go to the panel
    await app.stage.toggle(MachinePanel, lambda: MachinePanel(app))


async def _room(app: ChatApp, _: str) -> None:
    await app.room.offer("", None, False)


async def _trim(app: ChatApp, _: str) -> None:
    app.run_work(app.room.make(summarise=False))


async def _summarise(app: ChatApp, _: str) -> None:
    app.run_work(app.room.make(summarise=True))


async def _search(app: ChatApp, words: str) -> None:
    await app.opening.list(words)


async def _model(app: ChatApp, words: str) -> None:
    await app.picking.open(words)


async def _settings(app: ChatApp, _: str) -> None:
    await app.adjusting.open()


async def _watch(app: ChatApp, _: str) -> None:
    await app.watching.toggle()


DEEDS = (
    Deed("again", "Ask again for the answer", _again, "ctrl+r", "Ctrl+R", words="ask again, keeps both"),
    Deed("continue", "Let the answer go on", _go_on, "ctrl+g", "Ctrl+G", words="let the answer go on"),
    Deed("edit", "Edit the last message", _edit, "f4", "F4", words="edit the last message"),
    Deed("version", "Earlier version", _version, takes="next"),
    Deed("thoughts", "Show or hide thoughts", _thoughts, "f3", "F3", "on|off|low|high",
         "open or close thoughts", True),
    Deed("mode", "Next mode", lambda app, word: app.tuning.mode(word), "ctrl+t,f2", "F2 Ctrl+T", "NAME",
         "next mode, from the next answer", True),
    Deed("copy", "Copy the last answer", lambda app, word: app.copying.copy(word), "ctrl+y", "Ctrl+Y", "N",
         "copy the answer, then its code", True),
    Deed("attach", "Attach a text file", _attach, "f5", "F5", "FILE", "attach a text file", True),
    Deed("detach", "Attach nothing", _detach, anytime=True),
    Deed("new", "New chat", lambda app, _: app.opening.new(), "ctrl+n", "Ctrl+N", words="new chat"),
    Deed("open", "Open or search chats", _search, "ctrl+o", "Ctrl+O", "WORDS", "search, open, rename, pin …"),
    Deed("rename", "Rename this chat", _rename, takes="TITLE", anytime=True),
    Deed("pin", "Pin or unpin this chat", _pin, anytime=True),
    Deed("delete", "Delete this chat", _delete),
    Deed("undo", "Bring back a deleted chat", _undo),
    Deed("export", "Export this chat", _export, takes="md|json|FILE", words="Markdown, JSON or a file",
         anytime=True),
    Deed("import", "Import a chat", _import, takes="FILE"),
    Deed("system", "System prompt", lambda app, text: app.tuning.system(text), "f6", "F6", "TEXT",
         "system prompt, presets", True),
    Deed("preset", "Keep the system prompt", lambda app, name: app.tuning.preset(name), takes="NAME",
         anytime=True),
    Deed("set", "Sampling settings", lambda app, words: app.tuning.sampling(words), "f7", "F7", "NAME VALUE",
         "temperature and other sampling", True),
    Deed("room", "Make room in the context", _room, "f8", "F8", words="make room in a full context"),
    Deed("trim", "Trim the oldest messages", _trim),
    Deed("summarise", "Summarise the oldest messages", _summarise),
    Deed("budget", "Memory of the engine", _budget, takes="2G", words="memory for the engine, at once",
         anytime=True),
    Deed("model", "Models", _model, "ctrl+l,f9", "Ctrl+L F9", "WORDS", "choose or download a model", True),
    Deed("compare", "Compare two modes", lambda app, words: app.comparing.compare(words), takes="ar,MODE",
         words="one question in two modes"),
    Deed("watch", "Watch the speculation", _watch, "ctrl+s", "Ctrl+S",
         words="watch drafts and experts", anytime=True),
    Deed("settings", "Settings", _settings, "f10", "F10", words="settings for every start", anytime=True),
    Deed("machine", "Machine and switches", _machine, "f12", "F12", words="machine, live figures, switches",
         anytime=True),
    Deed("help", "Keys", lambda app, _: app.action_help(), "f1", "F1", words="this help", anytime=True),
    Deed("quit", "Quit", lambda app, _: app.action_quit(), "ctrl+q", "Ctrl+Q",
         words="quit; chats are always saved", anytime=True),
)  # fmt: skip


def deed(name: str) -> Deed | None:
    return next((row for row in DEEDS if row.name == name), None)


def typed(text: str) -> tuple[str, str] | None:
    """The command in `text` and what follows it; None when it is a message like any other.

    Paths have a second slash and are none; a space in front makes anything a message. Only a system prompt
    has more than one line.
    """
    found = _COMMAND.match(text.rstrip())
    if found is None or ("\n" in text.rstrip() and found[1] != "system"):
        return None
    return found[1], (found[2] or "").strip()


def matching(text: str, width: int) -> str:
    """Commands that begin as `text` does, for the one who types it; "" when `text` is no command.

    Of more than `width` cells have room for, the first, and where all of them are.
    """
    if not text.startswith("/") or "\n" in text:
        return ""
    name, space, _ = text[1:].partition(" ")
    row = deed(name)
    if row is not None and (space or row.takes):
        return f"/{row.name} {row.takes}  {row.words or row.title}"
    if space:
        return ""
    names = [f"/{row.name}" for row in DEEDS if row.name.startswith(name)]
    if len(" ".join(names)) <= width:
        return " ".join(names)
    while names and len(" ".join([*names, _ALL])) > width:
        names.pop()
    return " ".join([*names, _ALL])
