"""What the keys do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from app.deeds import DEEDS

if TYPE_CHECKING:
    from engine.remote.address import Address

_WELCOME = """\
**s2chat** chats with Mixture-of-Experts models on this machine. Nothing leaves it.

Type a message and press Enter. F1 shows the keys.
"""
_AWAY = """\
**s2chat** sends what you write to `{place}`, which answers. Chats are kept here.

Type a message and press Enter. F1 shows the keys.
"""


def welcome(server: Address | None) -> str:
    return _WELCOME if server is None else _AWAY.format(place=server.place)


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
    ("≈", "rounded otherwise, as on a GPU: it may differ"),
    ("≈lossy", "the mode changes the text"),
    ("acc", "drafted tokens that were accepted"),
    ("/pass", "tokens per pass of the model"),
    ("hit", "experts that were in memory"),
    ("MiB/tok", "experts read from disk per token"),
    ("mem", "memory of the engine / budget"),
    ("ctx", "tokens in the context / its size"),
)


class HelpScreen(ModalScreen[None]):
    """`lack` says what is missing for a command; such rows are greyed."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,f1,q,enter,ctrl+c", "dismiss", "Close")]

    def __init__(self, lack: Callable[[str], str]) -> None:
        super().__init__()
        self._lack = lack

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as box:
            box.border_title = "Keys"
            box.border_subtitle = "Esc closes"
            yield Static(Content("\n\n").join(_table(rows) for rows in _tables(self._lack)))


def _tables(lack: Callable[[str], str]) -> Iterator[tuple[tuple[str, str, str], ...]]:
    keys = tuple((deed.shown, deed.words, lack(deed.name)) for deed in DEEDS if deed.shown)
    yield _there(_WRITING) + keys + _there(_MOVING)
    yield _there(_CHOOSING)
    yield tuple(
        (f"/{deed.name} {deed.takes}", deed.words or deed.title.lower(), lack(deed.name))
        for deed in DEEDS
        if not deed.shown
    )
    yield _there(_TERMS)


def _there(rows: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str, str], ...]:
    return tuple((key, text, "") for key, text in rows)


def _table(rows: tuple[tuple[str, str, str], ...]) -> Content:
    return Content("\n").join(_line(*row) for row in rows)


def _line(key: str, text: str, missing: str) -> Content:
    if missing:
        return Content.styled(f"{key:<17} – {missing}", "dim")
    return Content.styled(f"{key:<17} ", "$text-primary") + Content(text)
