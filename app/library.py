"""The chats on disk, as the interface uses them: the open one, earlier ones, and what is remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.conversation import Conversation, restored
from app.history import Conversation as Chat
from app.history import History, Status, Stored
from app.recorder import Recorder

if TYPE_CHECKING:
    from app.answer import Answer
    from app.recorder import Notice
    from engine.paths import Paths


class Library:
    """`open` is the chat that is shown. Nothing here raises: a history that fails is a notice."""

    def __init__(self, paths: Paths, notice: Notice) -> None:
        self._recorder = Recorder(paths.history, notice)
        self.open = Conversation(self._recorder)

    async def start(self) -> str:
        """Opens the last chat that no other window has open; the prompt that was not sent in it."""
        await self._recorder.open()
        last = await self._recorder.call(lambda h: h.last(), None)
        return last.draft if last is not None and await self.switch(last.id) else ""

    async def switch(self, chat: int) -> bool:
        """Opens `chat`; False when another window has it open."""
        await self.open.settle()
        if not await self._recorder.call(lambda h: h.claim(chat), False):
            return False
        stored = await self._recorder.call(lambda h: h.messages(chat), list[Stored]())
        self.open = restored(self._recorder, chat, stored)
        return True

    async def new(self) -> None:
        await self.open.settle()
        await self.open.save_draft("")
        await self._recorder.call(lambda h: h.release(), None)
        self.open = Conversation(self._recorder)

    async def others(self) -> list[Chat]:
        chats = await self._recorder.call(lambda h: h.conversations(), list[Chat]())
        return [chat for chat in chats if chat.id != self.open.id]

    async def mode(self) -> str:
        return await self._recorder.call(lambda h: h.setting("mode"), "")

    async def remember_mode(self, mode: str) -> None:
        await self._recorder.call(lambda h: h.set_setting("mode", mode), None)

    async def theme(self) -> str:
        return await self._recorder.call(lambda h: h.setting("theme"), "")

    async def remember_theme(self, theme: str) -> None:
        await self._recorder.call(lambda h: h.set_setting("theme", theme), None)

    def last_words(self, answer: Answer | None, draft: str, status: Status) -> Callable[[History], None]:
        """What is still to be stored at the end, taken now: the text so far and the unsent prompt."""
        conversation, entry = self.open, self.open.last_answer
        if entry and answer:
            entry.text, entry.status, entry.end, entry.kept = answer.text, status, status, False

        def store(history: History) -> None:
            if conversation.id is not None or conversation.entries or draft:
                history.save_draft(conversation.catch_up(history), draft)

        return store

    def close(self, last: Callable[[History], None] | None, wait_s: float = 2.0) -> None:
        self._recorder.close(last, wait_s)
