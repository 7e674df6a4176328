"""How much of the context the next question takes, counted by the engine while it is being written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.conversation import told
from app.entry import Entry
from engine.errors import ContextFull, S2Error

if TYPE_CHECKING:
    from textual.timer import Timer

    from app.chat import ChatApp

_REST_S = 0.7


class Meter:
    """`tokens` of the whole next prompt, None while they are not known; `too_long` when it cannot fit."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self.tokens: int | None = None
        self.too_long = ""
        self._timer: Timer | None = None

    def measure_soon(self) -> None:
        """Has the engine count the next prompt once nothing has changed for a while."""
        if self._timer is not None:
            self._timer.stop()
        self._timer = self._app.set_timer(_REST_S, self._measure)

    async def _measure(self) -> None:
        if not self._app.is_answering and self._app.restored.is_set():
            await self.measure()
            self._app.label()
            self._app.refresh_status()

    def forget(self) -> None:
        self.tokens, self.too_long = None, ""

    async def measure(self) -> None:
        app = self._app
        draft = "" if app.prompt.text.startswith("/") else app.prompt.text
        entries = list(app.chats.open.entries)
        if app.turns.editing in entries:
            del entries[entries.index(app.turns.editing) :]
        if draft.strip() or app.attachments.files:
            entries.append(Entry("user", draft, "done", files=tuple(app.attachments.files)))
        messages = told(entries, app.system)
        self.forget()
        if messages and app.board.is_ready and app.link.offer.is_ours:
            try:
                self.tokens = await (await app.link.client()).count(messages)
            except ContextFull as error:
                self.too_long = error.message
            except S2Error:
                pass  # what is wrong shows when the question is asked
