"""What the engine link reports, as the chat shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.text import one_line
from engine.errors import Unauthorized

if TYPE_CHECKING:
    from app.chat import ChatApp
    from engine.errors import S2Error
    from engine.messages import Snapshot


class News:
    """Listens to the link. Notices of one engine are said once."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._known: set[str] = set()

    def engine_state(self, snapshot: Snapshot) -> None:
        app = self._app
        app.board.snapshot = snapshot
        app.board.place = app.link.offer.place
        if not app.link.offer.is_ours:
            app.mode = ""
        said = [snapshot.error] if snapshot.error else []
        if missing := [name for name in app.options.request if not app.link.offer.takes(name)]:
            said.append(f"{app.link.offer.place} does not take {', '.join(missing)}")
        for text in (*snapshot.notices, *said):
            if text not in self._known:
                self._known.add(text)
                app.notice(text)
        app.show_waiting()
        if app.board.is_ready and app.meter.tokens is None:
            app.meter.measure_soon()

    def engine_waiting(self, words: str) -> None:
        self._app.board.lost(words, problem=False)
        self._app.refresh_status()

    def engine_problem(self, error: S2Error) -> None:
        self._app.notice(_readable(error))
        self._app.board.lost(one_line(error.message.partition("\n")[0]), problem=True)
        self._app.refresh_status()
        if isinstance(error, Unauthorized):
            self._app.call_later(self._app.picking.ask_key, error.message)

    def engine_careful(self) -> None:
        self._app.notice("the engine starts again with less memory, a smaller context and plain decode")
        self._app.mode = "ar"


def _readable(error: S2Error) -> str:
    """What happened and what to do, with the first of a log's last lines."""
    return "\n".join([*error.message.splitlines()[:4], *([error.hint] if error.hint else [])])
