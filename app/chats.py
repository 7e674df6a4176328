"""The chats on disk, as the interface uses them: the open one, all others, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.conversation import Conversation, restored
from app.history import Conversation as Chat
from app.history import History, Status, Stored
from app.recorder import Recorder

if TYPE_CHECKING:
    from app.answer import Answer
    from app.entry import Entry
    from app.recorder import Notice
    from engine.paths import Paths


class Chats:
    """`open` is the chat that is shown. Nothing here raises: a history that fails is a notice."""

    def __init__(self, paths: Paths, notice: Notice) -> None:
        self.recorder = Recorder(paths.history, notice)
        self.open = Conversation(self.recorder)

    async def start(self) -> str:
        """Opens the last chat that no other window has open; the prompt that was not sent in it."""
        await self.recorder.open()
        last = await self.recorder.call(lambda h: h.last(), None)
        return last.draft if last is not None and await self.switch(last.id) else ""

    async def switch(self, chat: int) -> bool:
        """Opens `chat`; False when another window has it open."""
        await self.open.settle()
        if not await self.recorder.call(lambda h: h.claim(chat), False):
            return False
        stay = await self.recorder.call(lambda h: h.conversation(chat), None)
        stored = await self.recorder.call(lambda h: h.messages(chat), list[Stored]())
        if stay is None:
            return False
        self.open = restored(self.recorder, stay, stored)
        return True

    async def new(self) -> None:
        """The new chat keeps the system prompt and the sampling of the one that was open."""
        await self.open.settle()
        await self.open.save_draft("")
        await self.recorder.call(lambda h: h.release(), None)
        old, self.open = self.open, Conversation(self.recorder)
        self.open.system, self.open.sampling = old.system, dict(old.sampling)

    async def list(self, query: str = "") -> list[tuple[Chat, str]]:
        """All chats, or those in which `query` is found, each with a piece of text that shows where."""
        if query.strip():
            return await self.recorder.call(lambda h: h.search(query), list[tuple[Chat, str]]())
        chats = await self.recorder.call(lambda h: h.conversations(), list[Chat]())
        return [(chat, "") for chat in chats]

    async def rename(self, chat: int, title: str) -> None:
        if chat == self.open.id:
            self.open.title = title
        await self.recorder.call(lambda h: h.rename(chat, title), None)

    async def pin(self, chat: int, pinned: bool) -> None:
        if chat == self.open.id:
            self.open.pinned = pinned
        await self.recorder.call(lambda h: h.pin(chat, pinned), None)

    async def delete(self, chat: int) -> bool:
        """False when another window has it open. The open chat makes room for a new one."""
        if chat == self.open.id:
            await self.open.settle()
        if not await self.recorder.call(lambda h: h.delete(chat), False):
            return False
        if chat == self.open.id:
            self.open = Conversation(self.recorder)
        return True

    async def undelete(self) -> Chat | None:
        """Brings back the chat that was deleted last."""
        return await self.recorder.call(lambda h: h.restore(), None)

    async def setting(self, key: str) -> str:
        return await self.recorder.call(lambda h: h.setting(key), "")

    async def remember(self, key: str, value: str) -> None:
        await self.recorder.call(lambda h: h.set_setting(key, value), None)

    def last_words(
        self, answer: Answer | None, entry: Entry | None, draft: str, status: Status
    ) -> Callable[[History], None]:
        """What is still to be stored at the end, taken now: the text so far and the unsent prompt."""
        conversation = self.open
        if entry and answer:
            entry.status, entry.end, entry.kept = status, status, False

        def store(history: History) -> None:
            if conversation.id is not None or conversation.entries or draft:
                history.save_draft(conversation.catch_up(history), draft)

        return store

    def close(self, last: Callable[[History], None] | None, wait_s: float = 2.0) -> None:
        self.recorder.close(last, wait_s)
