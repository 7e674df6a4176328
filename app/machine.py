"""The machine panel: live gauges, how the answer goes along, what was chosen and why, and switches."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from app.background import in_background
from app.chosen import Machine, found_rows, plan_rows
from app.figures import answer_rows, budget_row, machine_rows
from app.lookout import Lookout
from app.lossy import mode_words
from app.sheet import Row, Sheet
from app.stage import Panel
from app.switches import Switches
from app.text import one_line
from app.trend import Trend
from engine.errors import S2Error
from engine.machine.inventory import this_machine
from engine.machine.live import Live

if TYPE_CHECKING:
    from textual import events

    from app.answer import Answer
    from app.chat import ChatApp
    from app.entry import Entry
    from engine.machine.reading import Reading

EACH_S = 1.0  # each look costs the threads that decode their time
_KEYS = "↑↓ choose · ←→ Enter change · Esc · F12 closes"


class MachinePanel(Vertical, Panel):
    """Looks at the machine while it is open, and not otherwise."""

    covers = True

    def __init__(self, app: ChatApp, live: Live | None = None) -> None:
        super().__init__(id="machine")
        self._chat = app
        self._lookout = Lookout(live or Live())
        self._switches = Switches(app, self.say)
        self._trend = Trend()
        self._trended = app.chats.open  # the chat whose answers it shows
        self._machine: Machine | None = None
        self._found: dict[str, Reading] = {}
        self._said = ""
        self.sheet = Sheet()
        self._why = Static(markup=False, classes="said")
        self.border_title = "Machine"
        self.border_subtitle = _KEYS

    def compose(self) -> ComposeResult:
        yield from (self.sheet, self._why)

    def on_mount(self) -> None:
        self.sheet.focus()
        self._redraw()
        self.run_worker(self._follow(), group="machine")
        self.run_worker(self._detect(Path(self._chat.link.model)), group="machine")

    def on_unmount(self) -> None:
        self._lookout.close()

    async def _follow(self) -> None:
        while True:
            link = self._chat.link
            self._found = await self._lookout.look(link.pid, Path(link.model))
            answer = self._chat.asker.answer
            if self._trended is not self._chat.chats.open:
                self._trended = self._chat.chats.open
                self._trend.forget()
            self._trend.take(answer.timings if answer else None)
            self._trend.memory.append(self._share_of_budget())
            self._redraw()
            await asyncio.sleep(EACH_S)

    async def _detect(self, model: Path) -> None:
        try:
            self._machine = Machine(*await in_background(partial(this_machine, model)))
        except (OSError, S2Error) as error:
            self.say(f"the machine cannot be looked at: {error}")
        self._redraw()

    def _share_of_budget(self) -> float | None:
        used, total = (self._found.get(name) for name in ("engine.memory", "memory.total"))
        snapshot = self._chat.board.snapshot
        limit = (snapshot.budget_bytes if snapshot else 0) or (total.value if total else 0)
        return used.value / limit if used and used.known and limit else None

    # Showing

    def _redraw(self) -> None:
        self.sheet.show(tuple(self._rows()))
        self._explain()

    def _rows(self) -> list[Row]:
        snapshot, answer = self._chat.board.snapshot, self._chat.asker.answer
        last = self._chat.chats.open.last_answer
        timings = answer.timings if answer else last.timings if last else None
        mode = self._mode_of(answer, last)
        has_store = bool(snapshot and snapshot.budget_bytes and snapshot.slot_bytes)
        free = self._found.get("memory.free")
        return [
            _heading("Switches"),
            *self._switches.rows(),
            _heading("The answer"),
            *answer_rows(self._trend, timings, mode=mode, running=answer is not None, has_store=has_store),
            budget_row(self._trend),
            _heading("Now"),
            *machine_rows(self._found, snapshot),
            _heading("Found here"),
            *found_rows(self._machine, free.value if free and free.known else 0),
            _heading("Chosen for this model"),
            *plan_rows(snapshot),
        ]

    def _mode_of(self, answer: Answer | None, last: Entry | None) -> str:
        board = self._chat.board
        if answer is not None:
            return str(board.mode_of(answer) or "")
        return str(board.label_of(last.mode) or mode_words(one_line(last.mode, 20))) if last else ""

    def say(self, words: str) -> None:
        """In place of the reason, until another row is chosen."""
        self._said = words
        self._redraw()

    def _explain(self) -> None:
        row = self.sheet.chosen
        why = one_line(row.why, 500) if row else ""
        words = Content(why[:1].upper() + why[1:])
        if self._said:
            words = Content.styled(one_line(self._said, 500), "$text-warning")
        if words.plain != str(self._why.content):
            self._why.update(words, layout=False)

    # Changing

    def on_key(self, event: events.Key) -> None:
        """Characters have no use here: they were meant for the prompt."""
        if event.is_printable and event.character is not None:
            event.stop()
            self._chat.prompt.focus(scroll_visible=False)
            self._chat.prompt.insert(event.character)

    def on_sheet_chosen(self, _: Sheet.Chosen) -> None:
        self._said = ""
        self._explain()

    async def on_sheet_turned(self, event: Sheet.Turned) -> None:
        self._said = ""
        await self._switches.turn(event.row.name, event.step)
        self._redraw()


def _heading(words: str) -> Row:
    return Row("", ((words, "heading"),))
