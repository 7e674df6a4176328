"""The list of models: what is on this machine, what runs here and why not, what can be fetched."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Input
from textual.widgets.option_list import Option

from app.background import in_background
from app.fetch import Leftover, remove
from app.hub import parse_name
from app.inventory import Item
from app.listing import ListScreen
from app.text import one_line
from app.verdict import CANNOT, DISK, FITS, SLOW, UNREADABLE, best
from engine.errors import BadRequest, S2Error
from engine.size import size

if TYPE_CHECKING:
    from app.downloads import Downloads

Scan = Callable[[], Iterator[Item]]
#: What an option of the list stands for; a text is a name to download, or the download that runs.
Row: TypeAlias = Item | Leftover | str

_EACH_S = 0.2  # between two redraws while models are found
_COLUMNS = {"mark": 2, "word": 14, "quant": 9, "size": 10}
_WIDE = 64  # cells of a row that leave room for the quantisation
_ORDER = {FITS: 0, DISK: 1, SLOW: 2, CANNOT: 3, UNREADABLE: 4}
_STYLES = {FITS: "$text-success", DISK: "$text-primary", SLOW: "$text-warning"}
_KEYS = "Enter opens · Ctrl+S starts with it · Del · Esc"
_HELP = "Type to filter, or OWNER/NAME of the Hugging Face hub to download"


class ModelScreen(ListScreen[Row, "Item | None"]):
    """Its result is the model to chat with. `now` is the one that is loaded; `at_start` keeps a model for
    every start and says so."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+l", "dismiss", "Close", priority=True),
        Binding("ctrl+s", "keep", show=False, priority=True),
        Binding("delete", "drop", show=False, priority=True),
    ]

    def __init__(
        self,
        scan: Scan,
        downloads: Downloads,
        now: Path | None,
        at_start: Callable[[Item], str],
        words: str = "",
    ) -> None:
        super().__init__("models", "Models", _KEYS, _HELP, words)
        self._scan, self._downloads, self._now, self._at_start = scan, downloads, now, at_start
        self._items: list[Item] = []
        self._left: list[Leftover] = []
        self._finding = True
        self._dirty = True
        self._best: Path | None = None
        self._said = ""
        self._has_moved = False

    def on_mount(self) -> None:
        self._downloads.changed = self._moved
        self.set_interval(_EACH_S, self._redraw)
        self.call_after_refresh(self._redraw)
        self.run_worker(self._find(), group="models", exit_on_error=False)

    def on_unmount(self) -> None:
        self._downloads.changed = lambda: None

    # Finding

    async def _find(self) -> None:
        """Everything anew: models come into the list as they are read."""
        items: list[Item] = []
        self._items = items
        self._finding = self._dirty = True
        loop = asyncio.get_running_loop()

        def found(item: Item) -> None:
            items.append(item)
            self._dirty = True

        def scan() -> None:
            for item in self._scan():
                if not self.is_attached or items is not self._items:  # left, or begun anew
                    return
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(found, item)

        self._left = await self._downloads.left()
        await in_background(scan)
        if items is self._items:
            self._finding, self._dirty = False, True

    def _moved(self) -> None:
        """The download has."""
        self._dirty = True
        if self._downloads.step is None:  # it is over: there is a new model, or a leftover
            self._said = self._downloads.said  # the chat says it as well, below this list
            self.run_worker(self._find(), group="models", exit_on_error=False)

    # Showing

    def on_input_changed(self, _: Input.Changed) -> None:
        self._said, self._dirty = "", True
        self._redraw()

    def on_resize(self) -> None:
        self._dirty = True
        self.call_after_refresh(self._redraw)

    def _redraw(self) -> None:
        if not self._dirty:
            return
        self._dirty = False
        # Until a key moves it, the bar stays on the model that answers now.
        key = _key(self.chosen) if self.chosen is not None and self._has_moved else str(self._now)
        rows = self._wanted()
        width = max(30, self.listing.content_size.width - 2)
        self._best = best(
            (item.path, item.info, item.verdict) for item in self._items if item.info is not None
        )
        keys = [_key(row) for row in rows]
        self.show(rows, lambda row: self._option(row, width), keys.index(key) if key in keys else 0)
        self._explain()

    def _wanted(self) -> list[Row]:
        words = self.line.value.strip()
        parts = words.lower().split()
        items = [item for item in self._items if all(part in _haystack(item) for part in parts)]
        items.sort(key=lambda item: (_ORDER[item.verdict.word], item.name.lower()))
        rows: list[Row] = []
        step = self._downloads.step
        if step is not None:
            rows.append(step.name)
        rows += items
        rows += [left for left in self._left if all(part in left.name.lower() for part in parts)]
        if "/" in words:
            with contextlib.suppress(BadRequest):
                parse_name(words)
                if step is None or step.name != words:
                    rows.append(words)
        return rows

    def _option(self, row: Row, width: int) -> Option:
        if isinstance(row, str):
            step = self._downloads.step
            words = f"↓ {row}: {step.words}" if step is not None and step.name == row else f"↓ download {row}"
            return Option(Content.styled(one_line(words, width), "$text-accent"))
        if isinstance(row, Leftover):
            return Option(
                Content.styled(
                    one_line(f"‖ unfinished: {row.name}, {size(row.size)}", width), "$text-warning"
                )
            )
        item = row
        mark = "▶ " if item.path == self._now else "★ " if item.path == self._best else "  "
        word = f"{item.verdict!s:<{_COLUMNS['word']}}"
        info = item.info
        quant = f"{info.quant if info else '':<{_COLUMNS['quant']}}" if width >= _WIDE else ""
        count = f"{size(info.size_bytes) if info else '':>{_COLUMNS['size']}}"
        room = width - len(mark) - len(word) - len(quant) - len(count) - 2
        name = Content(one_line(item.name, max(8, room)))
        name = name.pad_right(max(0, room - name.cell_length))
        style = _STYLES.get(item.verdict.word, "dim")
        return Option(
            Content.styled(mark, "$text-accent")
            + Content.styled(word, style)
            + (name if item.usable else name.stylize("dim"))
            + Content(f"  {quant}{count}")
        )

    def on_option_list_option_highlighted(self) -> None:
        self._explain()

    def _explain(self) -> None:
        """What is known of the highlighted model, or what the last key did."""
        row, lines = self.chosen, []
        if row is None:
            lines.append("looking for models …" if self._finding else "nothing here is called so")
        elif isinstance(row, str):
            running = self._downloads.step is not None and self._downloads.step.name == row
            lines.append(
                "Del stops it, what arrived is kept" if running else "Enter asks the hub and fetches it"
            )
        elif isinstance(row, Leftover):
            lines.append("Enter goes on with it, Del removes what is there")
        else:
            about = " · ".join(part for part in (row.about, row.tool) if part)
            mark = "▶ answers now: " if row.path == self._now else "★ suits this machine best: "
            mark = mark if row.path in (self._now, self._best) else ""
            lines += [about, mark + row.verdict.words, _home(row.path)]
        width = max(20, self.said.size.width)
        words = Content("\n".join(one_line(line, 2 * width) for line in lines))
        if self._said:
            words = Content.styled(one_line(self._said, 3 * width), "$text-warning") + Content("\n") + words
        self.said.update(words)

    # Keys

    def action_move(self, how: str) -> None:
        self._has_moved, self._said = True, ""
        super().action_move(how)

    def take(self, row: Row) -> None:
        if isinstance(row, Item):
            if row.verdict.word in (CANNOT, UNREADABLE):
                self._say("This one cannot be used:")
            else:
                self.dismiss(row)
        else:
            name = row if isinstance(row, str) else row.name
            if not self._downloads.start(name):
                self._say("One download at a time: Del on the one that runs stops it")
                return
            self._left = [left for left in self._left if left.name != name]
            self.line.value = ""
            self._dirty = True

    def action_keep(self) -> None:
        row = self.chosen
        if isinstance(row, Item) and row.usable:
            self._say(self._at_start(row))

    def action_drop(self) -> None:
        row, step = self.chosen, self._downloads.step
        if isinstance(row, str) and step is not None and step.name == row:
            self._downloads.stop()
        elif isinstance(row, Leftover):
            try:
                remove(row)
            except S2Error as error:
                self._say(error.line())
                return
            self._left = [left for left in self._left if left is not row]
            self._say(f"Removed, {size(row.size)} are free again")

    def _say(self, words: str) -> None:
        self._said, self._dirty = words, True
        self._redraw()


def _key(row: Row) -> str:
    return row if isinstance(row, str) else row.name if isinstance(row, Leftover) else str(row.path)


def _haystack(item: Item) -> str:
    return f"{item.name} {item.about} {item.tool} {item.path.name} {item.verdict.word}".lower()


def _home(path: Path) -> str:
    """With ~ for the home, so that what matters stays on the line."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
