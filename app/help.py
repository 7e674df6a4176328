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

# Texts of 32 cells at most fit beside the keys on a terminal of 60 columns.
_KEYS = (
    ("Enter", "send"),
    ("Ctrl+J Alt+Enter", "new line"),
    ("Esc Ctrl+C", "stop the answer, keep its text"),
    ("Ctrl+R", "ask again for the last answer"),
    ("Ctrl+T F2", "next mode, from the next answer"),
    ("Ctrl+Y", "copy the last answer"),
    ("Ctrl+N", "new chat"),
    ("Ctrl+O", "open an earlier chat"),
    ("PgUp PgDn", "scroll"),
    ("Ctrl+Home/End", "to the start, to the end"),
    ("/budget 2G", "memory for the engine, at once"),
    ("mouse", "select text, Ctrl+C copies it"),
    ("Ctrl+P", "commands, such as other colours"),
    ("Ctrl+Q", "quit; chats are always saved"),
)

_TERMS = (
    ("=exact", "the text plain decode would write"),
    ("≈lossy", "the mode may change the text"),
    ("acc", "drafted tokens that were accepted"),
    ("/pass", "tokens per pass of the model"),
    ("hit", "experts that were in memory"),
    ("MiB/tok", "experts read from disk per token"),
    ("mem", "memory of the engine / budget"),
    ("ctx", "tokens in the context / its size"),
)


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q,enter,ctrl+c", "dismiss", "Close")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as box:
            box.border_title = "Keys"
            box.border_subtitle = "Esc closes"
            yield Static(_table(_KEYS) + Content("\n\n") + _table(_TERMS))


def _table(rows: tuple[tuple[str, str], ...]) -> Content:
    lines = [Content.styled(f"{key:<17}", "$text-primary") + Content(text) for key, text in rows]
    return Content("\n").join(lines)
