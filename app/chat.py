"""The chat interface: puts the widgets together and turns keys into actions."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.widgets import TextArea

from app.adjusting import Adjusting
from app.asker import Asker
from app.attachments import Attachments
from app.board import Board
from app.chats import Chats
from app.colours import Colourless
from app.commands import commands
from app.copying import Copying
from app.deeds import DEEDS, deed, matching, typed
from app.drafts import Drafts
from app.help import WELCOME, HelpScreen
from app.link import EngineLink
from app.message import Message
from app.meter import Meter
from app.opening import Opening
from app.picking import Picking
from app.prompt import Prompt
from app.room import Room
from app.statusline import StatusLine
from app.terminal import HANGUP_EXIT, watch_hangup
from app.text import one_line
from app.transcript import Transcript
from app.tuning import Tuning
from app.turns import BUSY, Turns
from engine.errors import ContextFull, S2Error
from engine.thoughts import split

if TYPE_CHECKING:
    from textual import events
    from textual.screen import Screen
    from textual.theme import Theme
    from textual.timer import Timer

    from app.entry import Entry
    from app.history import History, Status
    from app.options import ChatOptions
    from engine.messages import Snapshot
    from engine.paths import Paths

_STATUS_S = 1.0
_MEASURE_S = 0.7  # the typing rests this long before its tokens are counted
_CHOOSING = "e edit · r again · g go on · c copy · ← → version · Esc"


def _key(keys: str, action: str, text: str) -> Binding:
    # Before the prompt, which would take some of them for itself.
    return Binding(keys, action, text, show=False, priority=True)


class ChatApp(App[None]):
    CSS_PATH = "app.tcss"
    TITLE = "s2chat"
    BINDINGS: ClassVar[list[BindingType]] = [
        *(_key(row.keys, f"deed('{row.name}')", row.title) for row in DEEDS if row.keys),
        *(_key(f"alt+{number}", f"block({number})", "Copy that code block") for number in range(1, 10)),
        _key("escape", "stop", "Stop the answer"),
        _key("ctrl+c", "stop_or_copy", "Stop the answer"),
        _key("pageup", "scroll(-1)", "Scroll up"),
        _key("pagedown", "scroll(1)", "Scroll down"),
        _key("ctrl+home", "scroll_home", "To the start"),
        _key("ctrl+end", "scroll_end", "To the end"),
    ]

    def __init__(self, paths: Paths, options: ChatOptions) -> None:
        super().__init__()
        if self.no_color:
            self._filters = [Colourless()]
        self.paths = paths
        self.options = options
        # Kept, because a query only looks at the screen on top, which may be the help.
        self.transcript = Transcript(WELCOME)
        self.status = StatusLine()
        self.prompt = Prompt()
        self.chats = Chats(paths, self.notice)
        self.mode = options.mode  # "" leaves it to the engine
        self._board = Board()
        self.turns = Turns(self)
        self.room = Room(self)
        self.tuning = Tuning(self)
        self.copying = Copying(self)
        self.opening = Opening(self)
        self.meter = Meter(self)
        self.drafts = Drafts(self)
        self.picking, self.adjusting = Picking(self), Adjusting(self)
        self._early_notices: list[str] = []
        self._known_notices: set[str] = set()
        self.is_answering = False
        self.restored = asyncio.Event()
        self._measure_timer: Timer | None = None
        self._status_at = 0.0
        self._farewell: Callable[[History], None] | None = None

    def compose(self) -> ComposeResult:
        yield from (self.transcript, self.status, self.prompt)

    def on_resize(self, event: events.Resize) -> None:
        # In the style sheet a share of a very low screen would leave no line to type in.
        self.prompt.styles.max_height = max(3, event.size.height * 3 // 10)

    # Life

    async def on_mount(self) -> None:
        self.link = EngineLink(self.paths, self.options.load, self)
        self.attachments = Attachments(self.link)
        self._asker = Asker(self.link, self.transcript, self.options, self._drawn, self._failed)
        self.prompt.focus()
        self.run_worker(self.link.run(), group="engine")
        self._ticks = self.set_interval(_STATUS_S, self._tick, pause=True)
        if not self.is_headless:
            self._watch_terminal()
        draft = await self.chats.start()
        self.mode = self.mode or await self.chats.setting("mode")
        await self._restore_theme()
        self.show_chat(draft)
        self.restored.set()
        self.drafts.save_soon()
        for text in self._early_notices:
            self.notice(text)
        gc.freeze()  # what is here stays; looking through it again and again took a tenth of drawing

    async def _restore_theme(self) -> None:
        theme = self.adjusting.begin() or await self.chats.setting("theme")
        if theme in self.available_themes:  # another version may have had others
            self.theme = theme
        self.theme_changed_signal.subscribe(self, self._remember_theme)

    async def _remember_theme(self, theme: Theme) -> None:
        self.adjusting.theme_chosen(theme.name)
        await self.chats.remember("theme", theme.name)

    def show_chat(self, draft: str) -> None:
        """Shows the open chat from its end, with the prompt that was not sent in it."""
        self.show_path(keep_notices=False)
        if draft and not self.prompt.text:
            self.prompt.text = draft
            self.prompt.move_cursor(self.prompt.document.end)

    def show_path(self, *, keep_notices: bool = True) -> None:
        """Shows what the open chat has become."""
        for entry in self.chats.open.entries:
            if len(entry.versions) > 1:
                entry.view.place = entry.place
        self.transcript.load(self.chats.open.views, keep_notices=keep_notices)
        self.meter.forget()
        self._refresh_status()
        self.measure_soon()

    def _watch_terminal(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._vanish)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.call_later, self.action_quit)
        watch_hangup(loop, self._vanish)

    def _vanish(self) -> None:
        """The terminal is gone: nothing can be drawn, and trying to would spin or block."""
        self.chats.close(self._last_words("interrupted"), wait_s=1.5)
        os._exit(HANGUP_EXIT)

    def _last_words(self, status: Status) -> Callable[[History], None]:
        asker = self._asker
        if asker.entry is not None:
            asker.entry.text = asker.text
        return self.chats.last_words(asker.answer, asker.entry, self.drafts.text, status)

    async def action_quit(self) -> None:
        self._farewell = self._last_words("stopped")
        self.exit()

    def close(self) -> None:
        """After the interface has left the terminal."""
        self.chats.close(self._farewell)

    # What the engine link reports

    def engine_state(self, snapshot: Snapshot) -> None:
        self._board.snapshot = snapshot
        for text in (*snapshot.notices, *([snapshot.error] if snapshot.error else [])):
            if text not in self._known_notices:
                self._known_notices.add(text)
                self.notice(text)
        if not self._asker.has_text:
            self._asker.waiting(self._refresh_status())
        if self.is_ready and self.meter.tokens is None:
            self.measure_soon()

    def engine_waiting(self, words: str) -> None:
        self._board.lost(words, problem=False)
        self._refresh_status()

    def engine_problem(self, error: S2Error) -> None:
        self.notice(_readable(error))
        self._board.lost(one_line(error.message.partition("\n")[0]), problem=True)
        self._refresh_status()

    def engine_careful(self) -> None:
        self.notice("the engine starts again with less memory, a smaller context and plain decode")
        self.mode = "ar"

    # Asking

    async def on_prompt_sent(self, event: Prompt.Sent) -> None:
        command = typed(event.text)
        if command is not None and self.turns.editing is None:
            await self._command(*command, event.text)
            return
        if self.is_answering:
            self.hint(BUSY)
            return
        await self.restored.wait()
        await self.turns.ask(event.text)

    async def _command(self, name: str, words: str, text: str) -> None:
        row = deed(name)
        if row is None:
            self.hint(f"There is no command /{name}. F1 shows all; a space in front sends it as it is.")
            return
        if self.is_answering and not row.anytime:
            self.hint(BUSY)
            return
        await self.restored.wait()
        self.take_prompt(text)
        await self.run_deed(name, words)

    def take_prompt(self, text: str) -> None:
        """`text` is sent: it leaves the prompt, what was typed behind it stays."""
        self.prompt.take(text)
        self.drafts.changed()
        self.label()

    def answer(self, entry: Entry, *, goes_on: bool = False) -> None:
        """Has `entry` answered; what happens now matters more than any hint."""
        self.is_answering = True
        self.status.say("")
        self.meter.forget()
        self.run_worker(self._await_answer(entry, goes_on), group="answer")
        self._ticks.resume()
        self._asker.waiting(self._refresh_status())

    async def _await_answer(self, entry: Entry, goes_on: bool) -> None:
        async def work() -> None:
            await self._asker.run(self.chats.open, entry, self.mode, goes_on=goes_on)

        await self._busy(work())

    async def _busy(self, work: Coroutine[Any, Any, None]) -> None:
        self.is_answering = True
        try:
            await work
        finally:
            # The work may have led to an answer of its own.
            self.is_answering = self._asker.answer is not None
            if not self.is_answering:
                self._ticks.pause()
            self._refresh_status()
            self.measure_soon()

    def run_work(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that keeps the engine busy like an answer, and that Esc stops like one."""
        self._ticks.resume()
        self.run_worker(self._busy(work), group="work")

    async def digest(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str:
        """The model's answer to `messages`, which is no part of the chat."""
        return split(await self._asker.digest(messages, options))[1]

    def _tick(self) -> None:
        """While an answer is on its way, unless its text keeps coming and brings the numbers along."""
        if time.monotonic() - self._status_at > _STATUS_S:
            self._asker.waiting(self._refresh_status())

    async def _drawn(self) -> None:
        """Waits until the screen shows what was changed, with new numbers in the same update."""
        if time.monotonic() - self._status_at > _STATUS_S / 2:
            self._refresh_status()
        done = asyncio.Event()
        if self.call_after_refresh(done.set):
            await done.wait()

    def _failed(self, error: S2Error, entry: Entry, goes_on: bool) -> None:
        asked = entry if goes_on else entry.parent
        if not goes_on and asked is not None and asked.status == "error" and not self.prompt.text:
            self.prompt.text = asked.text
        if isinstance(error, ContextFull):
            self.run_worker(self.room.offer(error.message, asked, goes_on))
        else:
            self.notice(error.line())

    def _refresh_status(self) -> str:
        self._board.set_mode(self.mode)
        last = self.chats.open.last_answer
        status = self._board.status(self._asker.answer, self._asker.stopping, last, self.meter)
        self._status_at = time.monotonic()
        self.status.show(status)
        return status.words

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        # These keys belong to the chat; a list or the help on top of it has its own.
        return "quit" in (action, *parameters) or len(self.screen_stack) == 1

    async def action_stop(self) -> None:
        if self.turns.chosen is not None:
            self.turns.choose(None)
        elif not self.turns.leave_edit():
            await self._asker.stop()
            self._refresh_status()

    async def action_stop_or_copy(self) -> None:
        if self.is_answering:
            await self._asker.stop()
        elif selected := self.screen.get_selected_text():
            self.copy_to_clipboard(selected)
            self.hint("Copied.")
        else:
            self.hint("Ctrl+Q quits.")

    async def action_deed(self, name: str) -> None:
        row = deed(name)
        if row is not None and self.is_answering and not row.anytime:
            self.hint(BUSY)
        else:
            await self.run_deed(name)

    async def run_deed(self, name: str, words: str = "") -> None:
        row = deed(name)
        if row is not None:
            await row.run(self, words)

    async def action_block(self, number: int) -> None:
        self.copying.block(self.answer_text, number)

    def action_move(self, step: int) -> None:
        self.turns.move(step)

    async def action_chosen(self, what: str) -> None:
        """What a key means for the chosen message."""
        entry = self.turns.chosen
        if entry is None or what == "leave":
            self.turns.choose(None)
        elif what == "copy":
            self.copying.message(entry.told)
        elif what.isdigit():
            self.copying.block(entry.told, int(what))
        elif what == "thoughts":
            self.fold_thoughts()
        elif self.is_answering:
            self.hint(BUSY)
        elif what in ("earlier", "later"):
            await self.turns.version(-1 if what == "earlier" else 1, entry)
        else:
            self.turns.choose(None)
            actions = {"edit": self.turns.edit, "again": self.turns.again, "on": self.turns.go_on}
            if (work := actions[what](entry)) is not None:
                await work

    def fold_thoughts(self) -> None:
        entries = [self.turns.chosen] if self.turns.chosen else self.chats.open.entries[::-1]
        view = next((e.view for e in entries if e.view.has_thoughts), None)
        if view is None:
            self.hint("There are no thoughts in this chat.")
        else:
            view.fold()
            self.transcript.redraw(view)

    @property
    def answer_text(self) -> str:
        """The last answer without its thoughts, also while it is written."""
        entry = self.chats.open.last_answer
        return split(self._asker.text if self._asker.entry else entry.text if entry else "")[1]

    async def change_mode(self, name: str) -> None:
        name = self._board.mode_named(name) if name else self._board.mode_after(self.mode)
        if not name:
            self.hint(self._board.mode_names or "The engine has not said yet which modes it knows.")
            return
        self.mode = name
        self.hint(self._board.set_mode(name))
        self._refresh_status()
        await self.chats.remember("mode", name)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:  # noqa: ARG002
        return commands(self)

    async def action_help(self) -> None:
        await self.push_screen(HelpScreen())

    def action_scroll(self, pages: int) -> None:
        step = max(1, self.transcript.size.height - 2)
        self.transcript.scroll_relative(y=pages * step, animate=False)

    def action_scroll_home(self) -> None:
        self.transcript.scroll_home(animate=False)

    def action_scroll_end(self) -> None:
        self.transcript.scroll_end(animate=False)

    # The prompt

    def on_text_area_changed(self, _: TextArea.Changed) -> None:
        self.drafts.typed()
        self.label()
        self.measure_soon()

    def label(self) -> None:
        """What stands in the prompt's frame."""
        chosen, editing = self.turns.chosen, self.turns.editing
        self.prompt.tell(
            title=matching(self.prompt.text)
            or ("editing: Enter takes it, Esc leaves it" if editing is not None else "")
            or self.attachments.words,
            keys=_CHOOSING if chosen is not None else "",
            context_size=self.context_size,
            too_long=self.meter.too_long,
        )

    def measure_soon(self) -> None:
        """Has the engine count the next prompt once nothing has changed for a while."""
        if self._measure_timer is not None:
            self._measure_timer.stop()
        self._measure_timer = self.set_timer(_MEASURE_S, self._measure)

    async def _measure(self) -> None:
        if not self.is_answering and self.restored.is_set():
            await self.meter.measure()
            self.label()
            self._refresh_status()

    # What others ask

    @property
    def is_ready(self) -> bool:
        return self._board.snapshot is not None and self._board.snapshot.state == "ready"

    @property
    def context_size(self) -> int:
        return self._board.context_size

    @property
    def memory_words(self) -> str:
        return self._board.memory_words

    @property
    def can_switch_thoughts(self) -> bool:
        model = self._board.snapshot.model if self._board.snapshot else None
        return model is not None and model.can_switch_thoughts

    @property
    def system(self) -> str:
        return self._asker.system_of(self.chats.open)

    @property
    def request_options(self) -> dict[str, Any]:
        return self._asker.options_for(self.chats.open)

    # Words to the user

    def hint(self, text: str) -> None:
        self.status.say(text)

    def notice(self, text: str) -> None:
        """Stays in the transcript, because it may be read much later."""
        if not self.restored.is_set():
            self._early_notices.append(text)  # the chat that is about to be shown would hide it
        elif self.is_running:
            self.transcript.add(Message("notice", text))


def _readable(error: S2Error) -> str:
    """What happened and what to do, with the first of a log's last lines."""
    return "\n".join([*error.message.splitlines()[:4], *([error.hint] if error.hint else [])])
