"""The commands of Ctrl+P: what the keys do, by name, and the colours. And the one that is typed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.app import SystemCommand

if TYPE_CHECKING:
    from app.chat import ChatApp


def commands(app: ChatApp) -> Iterable[SystemCommand]:
    """Textual's own offer a screenshot, a panel of the text area's keys and more that has no use here."""
    yield SystemCommand("New chat", "Ctrl+N", app.action_new)
    yield SystemCommand("Open an earlier chat", "Ctrl+O", app.action_open)
    yield SystemCommand("Next mode", "Ctrl+T or F2, from the next answer", app.action_next_mode)
    yield SystemCommand("Copy the last answer", "Ctrl+Y", app.action_copy)
    yield SystemCommand("Ask again for the last answer", "Ctrl+R", app.action_again)
    yield SystemCommand("Keys", "F1, what the keys do", app.action_help)
    if not app.no_color:
        yield SystemCommand("Colours", "choose a theme, it is remembered", app.action_change_theme)
    yield SystemCommand("Quit", "Ctrl+Q, chats are always saved", app.action_quit)


def budget_wish(text: str) -> str | None:
    """What follows /budget, "" for nothing; None when `text` is a message like any other."""
    command, _, wish = text.strip().partition(" ")
    return wish.strip() if command == "/budget" and "\n" not in text.strip() else None
