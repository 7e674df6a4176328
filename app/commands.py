"""The commands of Ctrl+P: all that the keys and slash commands do, by name, and the colours."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from textual.app import SystemCommand

from app.deeds import DEEDS

if TYPE_CHECKING:
    from app.chat import ChatApp


def commands(app: ChatApp) -> Iterable[SystemCommand]:
    """Textual's own offer a screenshot, a panel of the text area's keys and more that has no use here."""
    for deed in DEEDS:
        said = (deed.shown, f"/{deed.name}", deed.words)
        help_text = ", ".join(part for part in said if part)
        if missing := app.lack(deed.name):
            help_text = f"– {app.not_here(missing)}"
        yield SystemCommand(deed.title, help_text, partial(app.run_deed, deed.name))
    if not app.no_color:
        yield SystemCommand("Colours", "choose a theme, it is remembered", app.action_change_theme)
