"""Other chats and files: opened, listed, attached."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from textual.suggester import Suggester

from app.chatlist import ChatListScreen
from app.choice import LineScreen
from engine.errors import S2Error

if TYPE_CHECKING:
    from app.chat import ChatApp
    from app.history import Conversation as Chat


class Opening:
    def __init__(self, app: ChatApp) -> None:
        self._app = app

    async def new(self) -> None:
        """What is being typed moves along, because a full context is a reason to start a new chat."""
        app = self._app
        app.turns.leave_edit()
        await app.chats.new()
        app.drafts.changed()
        app.show_chat("")

    async def list(self, query: str) -> None:
        """All chats, those where `query` is found at first."""
        app = self._app
        await app.drafts.save()

        async def chosen(chat: Chat | None) -> None:
            if chat is not None:
                await self.switch(chat)

        await app.push_screen(ChatListScreen(app.chats, query), chosen)

    async def switch(self, chat: Chat) -> bool:
        app = self._app
        if chat.id == app.chats.open.id:
            return True
        if not await app.chats.switch(chat.id):
            app.hint("That chat is open in another window.")
            return False
        app.turns.leave_edit()
        app.prompt.clear()
        app.show_chat(chat.draft)
        return True

    async def number(self, chat: int) -> None:
        """Opens the chat with this number, which was just stored."""
        found = await self._app.chats.recorder.call(lambda history: history.conversation(chat), None)
        if found is not None:
            await self.switch(found)

    async def ask_file(self, title: str, said: str, deed: str) -> None:
        """Asks for a file's name and does with it what the command `deed` does."""

        async def typed(name: str | None) -> None:
            if name and name.strip():
                await self._app.run_deed(deed, name.strip())

        await self._app.push_screen(LineScreen(title, said=said, suggester=_Files()), typed)

    async def attach(self, path: Path) -> None:
        app = self._app
        try:
            app.hint(await app.attachments.add(path, app.board.context_size))
        except S2Error as error:
            app.notice(error.line())
        app.label()
        app.meter.measure_soon()


class _Files(Suggester):
    """Completes the name of a file."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        folder, slash, start = value.rpartition("/")
        try:
            names = sorted(path for path in Path(folder + slash or ".").expanduser().iterdir())
        except (OSError, RuntimeError):
            return None
        found = next((path for path in names if start and path.name.startswith(start)), None)
        return None if found is None else folder + slash + found.name + ("/" if found.is_dir() else "")
