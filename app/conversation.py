"""The open conversation: its turns, what of them the model is told, and how they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from app.labels import foot, stored_timings
from app.message import Message

if TYPE_CHECKING:
    from app.history import History, Status, Stored, Values
    from app.recorder import Recorder
    from engine.events import Timings


@dataclass(slots=True)
class Entry:
    """A message as the model gets it, and as it stands on the screen.

    `id` is None when it is not stored; `kept` says that the history has it as it stands here.
    """

    role: str
    text: str
    status: Status
    view: Message
    id: int | None = None
    timings: Timings | None = None
    mode: str = ""
    end: str = ""
    kept: bool = True

    @property
    def values(self) -> Values:
        return {**(self.timings.as_json() if self.timings else {}), "end": self.end}


@dataclass(slots=True)
class Conversation:
    """Every visit to the history first brings what an earlier one could not store: disks get room again."""

    recorder: Recorder
    id: int | None = None
    entries: list[Entry] = field(default_factory=list)

    @property
    def views(self) -> list[Message]:
        return [entry.view for entry in self.entries]

    @property
    def last_answer(self) -> Entry | None:
        return next((entry for entry in reversed(self.entries) if entry.role == "assistant"), None)

    async def begin(self, prompt: str, mode: str) -> Entry:
        """Stores and appends the user's turn and an empty answer, which is returned."""

        def store(history: History) -> tuple[int | None, int | None]:
            return history.begin_turn(self.catch_up(history), prompt, mode)

        unstored: tuple[int | None, int | None] = (None, None)
        user, answer = await self.recorder.call(store, unstored)
        view = Message("user", prompt)
        self.entries.append(Entry("user", prompt, "done", view, user, kept=user is not None))
        return self._add_answer(answer)

    async def begin_again(self, mode: str) -> Entry | None:
        """Replaces the last answer by an empty one; None when there is nothing to ask again."""
        old = self.last_answer
        if old is None or old is not self.entries[-1]:
            return None

        def store(history: History) -> int | None:
            conversation = self.catch_up(history)
            return None if old.id is None else history.begin_retry(conversation, old.id, mode)

        answer = await self.recorder.call(store, None)
        self.entries.pop()
        if self.entries:
            self.entries[-1].status = "done"
        return self._add_answer(answer)

    def _add_answer(self, message_id: int | None) -> Entry:
        self.entries.append(Entry("assistant", "", "streaming", Message("assistant"), message_id))
        return self.entries[-1]

    def save_partial(self, entry: Entry, text: str) -> None:
        entry.text = text
        if entry.id is not None:
            self.recorder.save_partial(entry.id, text)

    async def finish(self, entry: Entry, status: Status, end: str, timings: Timings | None) -> None:
        """`end` is a key of `labels.ENDS` where the answer did not end by itself."""
        entry.status, entry.timings, entry.end, entry.kept = status, timings, end, False
        await self.settle()

    async def refuse(self, entry: Entry) -> str:
        """The engine cannot take this turn: it is kept on screen, but the model is not told of it again."""
        user = self.entries[self.entries.index(entry) - 1]
        user.status, user.kept = "error", False
        await self.settle()
        return user.text

    async def save_draft(self, draft: str) -> bool:
        """False when the history cannot take it."""

        def store(history: History) -> bool:
            history.save_draft(self.catch_up(history), draft)
            return True

        return (self.id is None and not draft) or await self.recorder.call(store, False)

    async def settle(self) -> None:
        """Stores what is not stored yet."""
        if not all(entry.kept for entry in self.entries):
            await self.recorder.call(self.catch_up, 0)

    def catch_up(self, history: History) -> int:
        """Stores what is not stored yet, but for an answer that is still being written; the chat's number.

        Runs in the recorder's thread.
        """
        self.id = self.id or history.create()
        for entry in list(self.entries):
            if entry.kept or entry.status == "streaming":
                continue
            if entry.id is None:
                mode = entry.mode or None
                entry.id = history.add(self.id, entry.role, entry.text, entry.status, mode, entry.values)
            else:
                history.finish(entry.id, entry.text, entry.status, entry.values)
            entry.kept = True
        return self.id


def restored(recorder: Recorder, conversation: int, stored: Sequence[Stored]) -> Conversation:
    return Conversation(recorder, conversation, [_entry(message) for message in stored])


def _entry(stored: Stored) -> Entry:
    view = Message("user" if stored.role == "user" else "assistant", stored.content)
    timings = stored_timings(stored.timings)
    if stored.role == "assistant":
        view.foot = foot(str(stored.timings.get("end", stored.status)), stored.mode or "", timings)
    return Entry(stored.role, stored.content, stored.status, view, stored.id, timings, stored.mode or "")


def told(entries: Sequence[Entry], system: str = "") -> list[Mapping[str, str]]:
    """The turns as the model gets them: refused ones left out, users' turns without an answer joined.

    Many templates refuse two turns of the same role in a row, which is what a stopped answer leaves behind.
    """
    messages: list[dict[str, str]] = [{"role": "system", "content": system}] if system else []
    for entry in entries:
        if entry.status in ("error", "streaming") or not entry.text:
            continue
        if messages and messages[-1]["role"] == entry.role == "user":
            messages[-1]["content"] += "\n\n" + entry.text
        else:
            messages.append({"role": entry.role, "content": entry.text})
    return list(messages)
