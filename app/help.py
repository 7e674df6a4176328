"""What the keys do."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

WELCOME = """\
**s2chat** chats with Mixture-of-Experts models on this machine. Nothing leaves it.

Type a message and press Enter. F1 shows the keys.
"""

_KEYS = (
    ("Enter", "send"),
    ("Ctrl+J, Alt+Enter", "new line (Shift+Enter where the terminal tells it apart)"),
    ("Esc, Ctrl+C", "stop the answer and keep its text; again: at once"),
    ("Ctrl+R", "ask again for the last answer"),
    ("Ctrl+T, F2", "next mode, from the next answer on"),
    ("Ctrl+Y", "copy the last answer, also to a file"),
    ("Ctrl+N", "new chat"),
    ("Ctrl+O", "open an earlier chat"),
    ("PgUp, PgDn", "scroll; Ctrl+End goes to the end"),
    ("mouse", "select text, Ctrl+C copies it"),
    ("Ctrl+P", "commands, such as other colours"),
    ("Ctrl+Q", "quit; chats are saved as they grow"),
)

_TERMS = (
    ("=exact", "the text is what plain decode writes"),
    ("≈lossy", "the mode may change the text"),
    ("accepted", "drafted tokens that the full model kept"),
    ("/pass", "tokens per pass of the full model"),
    ("ctx", "tokens in the context, and its size"),
)


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q,enter,ctrl+c", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as box:
            box.border_title = "Keys"
            box.border_subtitle = "Esc closes"
            yield Static(_table(_KEYS) + Content("\n\n") + _table(_TERMS))


def _table(rows: tuple[tuple[str, str], ...]) -> Content:
    lines = [Content.styled(f"{key:<18}", "$text-primary") + Content(text) for key, text in rows]
    return Content("\n").join(lines)
