"""The prompt that is not sent yet: stored while it is typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.timer import Timer

    from app.chat import ChatApp

_SOON_S = 0.1  # what is typed may be lost for this long
_LONG_S = 1.0  # a pasted book is not written to the disk ten times a second
_LONG = 100_000


class Drafts:
    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._changed = False
        self._length = 0
        self._timer: Timer | None = None

    @property
    def text(self) -> str:
        """What comes back at the next start: not the new text of a message that is being edited."""
        turns = self._app.turns
        return self._app.prompt.text if turns.editing is None else turns.draft

    def changed(self) -> None:
        self._changed = True

    def save_soon(self) -> None:
        if self._timer is None:
            self._timer = self._app.set_timer(_SOON_S if self._length < _LONG else _LONG_S, self.save)

    def typed(self) -> None:
        self.changed()
        self.save_soon()

    async def save(self) -> None:
        self._timer = None
        if self._changed and self._app.restored.is_set():
            self._changed = False
            text = self.text
            self._length = len(text)
            # What could not be saved goes with the next change, or at the end.
            self._changed = not await self._app.chats.open.save_draft(text) or self._changed
