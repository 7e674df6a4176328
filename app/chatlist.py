"""The list of all chats: searched as one types, opened, renamed, pinned, deleted and brought back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input
from textual.widgets.option_list import Option

from app.listing import ListScreen
from app.text import display, one_line

if TYPE_CHECKING:
    from textual.timer import Timer

    from app.chats import Chats
    from app.history import Conversation

_PAUSE_S = 0.15  # a search starts when the typing rests
_KEYS = "Enter opens · F2 name · F3 pin · Del · F4 undo"


class ChatListScreen(ListScreen["tuple[Conversation, str]", "Conversation | None"]):
    """Its result is the chat to open. Everything else is done here, and stored at once."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c,ctrl+o", "leave", "Close", priority=True),
        Binding("enter", "take", priority=True),
        Binding("f2", "rename", priority=True),
        Binding("f3", "pin", priority=True),
        Binding("delete,f8", "remove", priority=True),
        Binding("f4,ctrl+z", "undo", priority=True),
    ]

    def __init__(self, chats: Chats, query: str = "") -> None:
        super().__init__("chats", "Chats", _KEYS, "search in all chats", query)
        self._chats = chats
        self._query = query
        self._timer: Timer | None = None
        self._renaming: Conversation | None = None

    async def on_mount(self) -> None:
        await self._refresh()

    def on_input_changed(self, _: Input.Changed) -> None:
        if self._renaming is None:
            if self._timer is not None:
                self._timer.stop()
            self._timer = self.set_timer(_PAUSE_S, self._refresh)

    async def _settle(self) -> None:
        """Lists what fits what was typed, where that is still to come: keys mean what one sees then."""
        if self._timer is not None:
            self._timer.stop()
            await self._refresh()

    async def _refresh(self, keep: int | None = None) -> None:
        """Lists what is found, with the chat numbered `keep` highlighted."""
        self._timer = None
        query = self.line.value
        found = await self._chats.list(query)
        here = self._chats.open.id
        at = next((at for at, (chat, _) in enumerate(found) if chat.id == keep), None)
        if at is None:  # the chat that is open already is not what one comes for
            at = next((at for at, (chat, _) in enumerate(found) if query or chat.id != here), 0)
        self.show(found, lambda row: _option(*row, here), at)
        if not found:
            self._say("Nothing is found." if query.strip() else "There is no chat yet.")
        else:
            count = len(found)
            self._say(f"{count} {'chat' if count == 1 else 'chats'}" if query.strip() else "")

    def _say(self, text: str) -> None:
        self.said.update(Content(display(text)))

    @property
    def _chat(self) -> Conversation | None:
        return None if self.chosen is None else self.chosen[0]

    async def action_take(self) -> None:
        await self._settle()
        if self._renaming is not None:
            await self._end_rename(self.line.value)
        elif (chat := self._chat) is not None:
            self._open(chat)

    def take(self, row: tuple[Conversation, str]) -> None:
        self._open(row[0])

    def _open(self, chat: Conversation) -> None:
        if chat.open_elsewhere:
            self._say("That chat is open in another window.")
        else:
            self.dismiss(chat)

    async def action_leave(self) -> None:
        if self._renaming is not None:
            await self._end_rename(None)
        else:
            self.dismiss(None)

    async def action_rename(self) -> None:
        await self._settle()
        if (chat := self._chat) is not None and self._renaming is None:
            self._renaming = chat
            self._query = self.line.value
            self.line.value = one_line(chat.title, 200)
            self._say("Type the new title. Enter takes it, Esc keeps the old one.")

    async def _end_rename(self, title: str | None) -> None:
        chat = self._renaming
        if chat is not None:
            if title is not None and title.strip():
                await self._chats.rename(chat.id, one_line(title, 200))
            with self.prevent(Input.Changed):
                self.line.value = self._query
            self._renaming = None
            await self._refresh(keep=chat.id)

    async def action_pin(self) -> None:
        await self._settle()
        if (chat := self._chat) is not None and self._renaming is None:
            await self._chats.pin(chat.id, not chat.pinned)
            await self._refresh(keep=chat.id)

    async def action_remove(self) -> None:
        await self._settle()
        chat = self._chat
        if chat is None or self._renaming is not None:
            return
        if chat.id == self._chats.open.id:
            self._say("This chat is open. /delete deletes it, or open another one first.")
        elif await self._chats.delete(chat.id):
            at = self.listing.highlighted or 0
            await self._refresh()
            self.listing.highlighted = min(at, len(self.rows) - 1) if self.rows else None
            self._say(f"Deleted: {one_line(chat.title, 40)}. F4 brings it back.")
        else:
            self._say("That chat is open in another window.")

    async def action_undo(self) -> None:
        if self._renaming is None:
            chat = await self._chats.undelete()
            await self._refresh(keep=None if chat is None else chat.id)
            if chat is None:
                self._say("Nothing was deleted in the last week.")


def _option(chat: Conversation, excerpt: str, here: int | None) -> Option:
    sign = "*" if chat.pinned else "›" if chat.id == here else " "
    when = time.strftime("%y-%m-%d %H:%M", time.localtime(chat.updated))
    title = one_line(chat.title or chat.draft, 100) or "(no title)"
    line = Content(f"{sign} ") + Content.styled(when, "dim") + Content(f"  {title}")
    if chat.open_elsewhere:
        line += Content.styled("  open in another window", "$text-warning")
    if excerpt and one_line(excerpt) != title:
        line += Content.styled(f"\n    {one_line(excerpt, 120)}", "dim")
    return Option(line)
