"""What the keys do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.deeds import DEEDS

WELCOME = """\
**s2chat** chats with Mixture-of-Experts models on this machine. Nothing leaves it.

Type a message and press Enter. F1 shows the keys.
"""

# Texts of 32 cells at most fit beside the keys on a terminal of 60 columns.
_WRITING = (
    ("Enter", "send"),
    ("Ctrl+J Alt+Enter", "new line"),
    ("Esc Ctrl+C", "stop the answer, keep its text"),
)
_CHOOSING = (
    ("Tab, or ↑", "choose a message, then:"),
    ("e r g", "edit, ask again, go on"),
    ("← →", "its earlier and later versions"),
    ("c, 1 to 9", "copy it, its n-th code block"),
)
_MOVING = (
    ("Alt+1 to 9", "copy that code block"),
    ("PgUp PgDn", "scroll"),
    ("Ctrl+Home/End", "to the start, to the end"),
    ("mouse", "select text, Ctrl+C copies it"),
    ("Ctrl+P", "all commands, and colours"),
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
            yield Static(Content("\n\n").join(_table(rows) for rows in _tables()))


def _tables() -> Iterator[tuple[tuple[str, str], ...]]:
    keys = tuple((deed.shown, deed.words) for deed in DEEDS if deed.shown)
    yield _WRITING + keys + _MOVING
    yield _CHOOSING
    yield tuple(
        (f"/{deed.name} {deed.takes}", deed.words or deed.title.lower()) for deed in DEEDS if not deed.shown
    )
    yield _TERMS


def _table(rows: tuple[tuple[str, str], ...]) -> Content:
    lines = [Content.styled(f"{key:<17} ", "$text-primary") + Content(text) for key, text in rows]
    return Content("\n").join(lines)
