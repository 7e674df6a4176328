"""The open conversation: its messages in all their versions, the path that is shown, how they are stored.

Nothing is overwritten: an edited question or an answer that was asked for again stands beside the earlier
one, with all that followed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.entry import CUT, Entry, from_stored

if TYPE_CHECKING:
    from app.history import Conversation as Stay
    from app.history import File, History, Status, Stored
    from app.message import Message
    from app.recorder import Recorder
    from engine.events import Timings


@dataclass(slots=True)
class Conversation:
    """`entries` is the path that is shown, `all` has every version in the order of writing.

    Every visit to the history first brings what an earlier one could not store: disks get room again.
    """

    recorder: Recorder
    id: int | None = None
    entries: list[Entry] = field(default_factory=list)
    all: list[Entry] = field(default_factory=list)
    title: str = ""
    pinned: bool = False
    system: str | None = None
    sampling: dict[str, float] = field(default_factory=dict)

    @property
    def views(self) -> list[Message]:
        return [entry.view for entry in self.entries]

    @property
    def last_answer(self) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if entry.role == "assistant"), None)

    @property
    def leaf(self) -> Entry | None:
        return self.entries[-1] if self.entries else None

    # Writing

    async def begin(self, prompt: str, mode: str, files: Sequence[File] = ()) -> Entry:
        """Stores and appends the user's turn and an empty answer, which is returned."""
        return await self._begin_turn(prompt, mode, files, self.leaf)

    async def begin_edited(self, old: Entry, prompt: str, mode: str) -> Entry:
        """Asks `prompt` in the place of the question `old`; an empty answer to it."""
        return await self._begin_turn(prompt, mode, old.files, old.parent)

    async def _begin_turn(self, prompt: str, mode: str, files: Sequence[File], parent: Entry | None) -> Entry:
        self._rewind(parent)

        def store(history: History) -> tuple[int | None, int | None]:
            chat = self.catch_up(history)
            return history.begin_turn(chat, prompt, mode, parent=_id(parent), files=files)

        unstored: tuple[int | None, int | None] = (None, None)
        user, answer = await self.recorder.call(store, unstored)
        self._append(Entry("user", prompt, "done", id=user, kept=user is not None, files=tuple(files)))
        return self._append(Entry("assistant", "", "streaming", id=answer))

    async def begin_again(self, old: Entry, mode: str) -> Entry:
        """An empty answer beside `old`."""
        parent = old.parent
        self._rewind(parent)

        def store(history: History) -> int | None:
            return history.begin_answer(self.catch_up(history), mode, parent=_id(parent))

        answer = await self.recorder.call(store, None)
        if parent is not None and parent.status == "error":
            parent.status, parent.kept = "done", False
        return self._append(Entry("assistant", "", "streaming", id=answer))

    async def resume(self, entry: Entry, mode: str) -> None:
        """The answer `entry` goes on, in `mode`."""
        entry.status = "streaming"
        mode = entry.mode_after(mode)

        def store(history: History) -> None:
            self.catch_up(history)
            if entry.id is not None:
                history.resume(entry.id, mode)

        await self.recorder.call(store, None)

    async def rewrite(self, old: Entry, text: str) -> Entry:
        """The user's own version of the answer `old`."""
        self._rewind(old.parent)
        return await self._add(Entry("assistant", text, "done", mode=old.mode, kept=False))

    async def cut(self, keeps: int, summary: str) -> Entry:
        """From now on the model is told the last `keeps` messages, and `summary` of what was before."""
        return await self._add(Entry(CUT, summary, "done", keeps=keeps, kept=False))

    async def _add(self, entry: Entry) -> Entry:
        self._append(entry)
        await self.settle()
        return entry

    async def show(self, entry: Entry) -> None:
        """The path through `entry` becomes the one that is shown, to its latest end."""
        path, latest = _up(entry), {later.parent: later for later in self.all}
        while (child := latest.get(path[-1])) is not None:
            path.append(child)
        self.entries = path
        await self._store_leaf()

    def _rewind(self, parent: Entry | None) -> None:
        """Shows the path up to `parent`; what followed it stays among its branches."""
        del self.entries[0 if parent is None else self.entries.index(parent) + 1 :]

    async def take_back(self, question: Entry) -> None:
        """Leaves a turn that could not be asked: the path ends before it."""
        self._rewind(question.parent)
        await self._store_leaf()

    async def _store_leaf(self) -> None:
        leaf = self.leaf

        def store(history: History) -> None:
            history.show(self.catch_up(history), _id(leaf))

        await self.recorder.call(store, None)

    def _append(self, entry: Entry) -> Entry:
        entry.parent = self.leaf
        self.all.append(entry)
        self.entries.append(entry)
        join_versions(self.all, entry)
        return entry

    def save_partial(self, entry: Entry, text: str) -> None:
        entry.text = text
        if entry.id is not None:
            self.recorder.save_partial(entry.id, text)

    async def finish(self, entry: Entry, status: Status, end: str, timings: Timings | None) -> None:
        """`end` is a key of `labels.ENDS` where the answer did not end by itself."""
        entry.status, entry.timings, entry.end, entry.kept = status, timings or entry.timings, end, False
        await self.settle()

    async def refuse(self, entry: Entry) -> str:
        """The engine cannot take this turn: it is kept on screen, but the model is not told of it again."""
        user = entry.parent
        if user is None or user.role != "user":
            return ""
        user.status, user.kept = "error", False
        await self.settle()
        return user.text

    # Storing

    async def save_draft(self, draft: str) -> bool:
        """False when the history cannot take it."""

        def store(history: History) -> bool:
            history.save_draft(self.catch_up(history), draft)
            return True

        return (self.id is None and not draft) or await self.recorder.call(store, False)

    async def set_system(self, system: str | None) -> None:
        self.system = system
        await self.recorder.call(lambda history: history.set_system(self.catch_up(history), system), None)

    async def set_sampling(self, sampling: Mapping[str, float]) -> None:
        self.sampling = dict(sampling)
        values = dict(sampling)
        await self.recorder.call(lambda history: history.set_sampling(self.catch_up(history), values), None)

    async def settle(self) -> None:
        """Stores what is not stored yet."""
        if not all(entry.kept for entry in self.all):
            await self.recorder.call(self.catch_up, 0)

    def catch_up(self, history: History) -> int:
        """Stores what is not stored yet, but for an answer that is still being written; the chat's number.

        Runs in the recorder's thread.
        """
        if self.id is None:
            self.id = history.create()
            if self.system is not None:
                history.set_system(self.id, self.system)
            if self.sampling:
                history.set_sampling(self.id, self.sampling)
        for entry in list(self.all):
            if entry.kept or entry.status == "streaming":
                continue
            if entry.id is None:
                entry.id = history.add(
                    self.id,
                    entry.role,
                    entry.text,
                    entry.status,
                    entry.mode or None,
                    entry.values,
                    parent=_id(entry.parent),
                    files=entry.files,
                )
            else:
                history.finish(entry.id, entry.text, entry.status, entry.values, entry.mode or None)
            entry.kept = True
        return self.id


def restored(recorder: Recorder, stay: Stay, stored: Sequence[Stored]) -> Conversation:
    """The conversation as it was left."""
    entries = {message.id: from_stored(message) for message in stored}
    siblings: dict[tuple[int | None, str], list[Entry]] = {}
    for message in stored:
        entry = entries[message.id]
        # A parent comes before its children; whatever a damaged file says, the path must end.
        known = message.parent is not None and message.parent < message.id
        entry.parent = entries.get(message.parent) if known and message.parent is not None else None
        entry.versions = siblings.setdefault((_id(entry.parent), entry.role), [])
        entry.versions.append(entry)
    leaf = entries.get(stay.leaf) if stay.leaf is not None else None
    if leaf is None and entries:
        leaf = list(entries.values())[-1]
    chat = Conversation(recorder, stay.id, title=stay.title, pinned=stay.pinned, system=stay.system)
    chat.sampling = dict(stay.sampling)
    chat.all = list(entries.values())
    chat.entries = _up(leaf) if leaf is not None else []
    return chat


def join_versions(entries: Sequence[Entry], entry: Entry) -> None:
    """`entry` is a version of those with its role and parent."""
    other = next(
        (e for e in entries if e is not entry and e.parent is entry.parent and e.role == entry.role), None
    )
    if entry.role != CUT and other is not None:
        entry.versions = other.versions
    entry.versions.append(entry)


def _up(entry: Entry) -> list[Entry]:
    """The path from the first message to `entry`."""
    path = [entry]
    while (parent := path[-1].parent) is not None:
        path.append(parent)
    return path[::-1]


def _id(entry: Entry | None) -> int | None:
    return None if entry is None else entry.id


def told(entries: Sequence[Entry], system: str = "", last: Entry | None = None) -> list[Mapping[str, str]]:
    """The turns as the model gets them: refused ones left out, users' turns without an answer joined.

    `last` is an answer that is to go on: it is told as the model wrote it, thoughts and all. Many templates
    refuse two turns of the same role in a row, which is what a stopped answer leaves behind.
    """
    turns, summary = _after_cut([entry for entry in entries if entry.role == CUT or _counts(entry, last)])
    system = "\n\n".join(part for part in (system, summary and _SUMMARY + summary) if part)
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    for entry in turns:
        text = entry.text if entry is last else entry.told
        if messages and messages[-1]["role"] == entry.role == "user":
            messages[-1]["content"] += "\n\n" + text
        else:
            messages.append({"role": entry.role, "content": text})
    return list(messages)


_SUMMARY = "Summary of the conversation so far:\n"


def tellable(entries: Sequence[Entry]) -> list[Entry]:
    """The messages of which the model is told, before anything is cut."""
    return [entry for entry in entries if entry.role != CUT and _counts(entry, None)]


def _counts(entry: Entry, last: Entry | None) -> bool:
    if entry is last:
        return True
    return entry.status not in ("error", "streaming") and bool(entry.told)


def _after_cut(entries: list[Entry]) -> tuple[list[Entry], str]:
    """The messages that the last cut leaves, and its summary."""
    at = next((at for at in range(len(entries) - 1, -1, -1) if entries[at].role == CUT), None)
    if at is None:
        return entries, ""
    before = [entry for entry in entries[:at] if entry.role != CUT]
    return before[max(0, len(before) - entries[at].keeps) :] + entries[at + 1 :], entries[at].text
