"""Esc and Ctrl+C: what is being done ends, also where the engine hangs; at last the program does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.chat import ChatApp

_TWICE_S = 2.0  # between two presses that belong together


class Stopping:
    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self._pressed_at = -_TWICE_S

    def stop(self) -> None:
        """Stops the answer. An engine that hangs takes long to say so, and holds no key up meanwhile."""
        self._app.run_worker(self._stop(), group="stop")

    async def _stop(self) -> None:
        await self._app.asker.stop()
        self._app.refresh_status()

    async def interrupt(self) -> None:
        """Ctrl+C, which many press before they look: it copies, stops, and pressed again quits."""
        app, now = self._app, time.monotonic()
        again, self._pressed_at = now - self._pressed_at < _TWICE_S, now
        if not app.is_answering and (selected := app.screen.get_selected_text()):
            app.copy_to_clipboard(selected)
            app.hint("Copied.")
            self._pressed_at = -_TWICE_S
        elif again:
            await app.action_quit()
        elif app.is_answering:
            self.stop()
            app.hint("Stopping. Ctrl+C again quits.")
        else:
            app.hint("Ctrl+C again quits, and so does Ctrl+Q.")
