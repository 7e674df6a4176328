"""The chat interface: puts the widgets together and turns keys into actions."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widgets import TextArea

from app import pasted
from app.adjusting import Adjusting
from app.asker import Asker
from app.attachments import Attachments
from app.board import Board
from app.chats import Chats
from app.colours import Colourless
from app.commands import commands
from app.comparing import Comparing
from app.copying import Copying
from app.deeds import DEEDS, deed, matching, typed
from app.distant import DistantServer
from app.drafts import Drafts
from app.help import HelpScreen, welcome
from app.lacking import lack
from app.link import EngineLink
from app.local import LocalEngine
from app.message import Message
from app.meter import Meter
from app.news import News
from app.opening import Opening
from app.order import settle
from app.picking import Picking
from app.prompt import Prompt
from app.room import Room
from app.stage import Stage
from app.statusline import StatusLine
from app.stopping import Stopping
from app.terminal import HANGUP_EXIT, watch_hangup
from app.text import one_line
from app.transcript import Transcript
from app.tuning import Tuning
from app.turns import BUSY, Turns
from app.uncontrolled import Uncontrolled
from app.watching import Watching
from engine.errors import ContextFull, S2Error

if TYPE_CHECKING:
    from textual import events
    from textual.screen import Screen
    from textual.theme import Theme

    from app.entry import Entry
    from app.history import History, Status
    from app.options import ChatOptions
    from engine.paths import Paths

_STATUS_S = 1.0
_CHOOSING = "e edit · r again · g on · c copy · ←→ version · Esc"


def _key(keys: str, action: str, text: str) -> Binding:
    # Before the prompt, which would take some of them for itself.
    return Binding(keys, action, text, show=False, priority=True)


class ChatApp(App[None]):
    CSS_PATH = "app.tcss"
    TITLE = "s2chat"
    HORIZONTAL_BREAKPOINTS: list[tuple[int, str]] | None = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
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
        pasted.use()
        super().__init__()
        if self.no_color:
            self._filters = [Colourless()]
        self._filters.append(Uncontrolled())
        self.paths = paths
        self.options = options
        # Kept, because a query only looks at the screen on top, which may be the help.
        self.transcript = Transcript(welcome(options.server))
        self.status = StatusLine()
        self.prompt = Prompt()
        self.chats = Chats(paths, self.notice)
        self.mode = options.mode  # "" leaves it to the engine
        self.board = Board()
        self.turns: Turns = Turns(self)
        self.room: Room = Room(self)
        self.stopping: Stopping = Stopping(self)
        self.tuning: Tuning = Tuning(self)
        self.copying: Copying = Copying(self)
        self.opening: Opening = Opening(self)
        self.meter = Meter(self)
        self.drafts = Drafts(self)
        self.picking: Picking = Picking(self)
        self.adjusting: Adjusting = Adjusting(self)
        self.watching: Watching = Watching(self)
        self.comparing: Comparing = Comparing(self)
        self.stage = Stage(self.transcript, self.watching.follow)
        self._early_notices: list[str] = []
        self._works = 0
        self.restored = asyncio.Event()
        self._status_at = 0.0
        self._farewell: Callable[[History], None] | None = None

    def compose(self) -> ComposeResult:
        yield from (self.stage, self.status, self.prompt)

    def on_resize(self, event: events.Resize) -> None:
        # In the style sheet a share of a very low screen would leave no line to type in.
        self.prompt.styles.max_height = max(3, event.size.height * 3 // 10)

    # Life

    async def on_mount(self) -> None:
        self.source = self._source()
        self.link = EngineLink(self.source, News(self))
        self.attachments = Attachments(self.link)
        self.asker = Asker(self.link, self.transcript, self.options, self._drawn, self._failed)
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
        gc.enable()
        gc.freeze()  # what is here stays; looking through it again and again took a tenth of drawing

    def _source(self) -> LocalEngine | DistantServer:
        """Where answers come from."""
        if self.options.server is None:
            return LocalEngine(self.paths, self.options.load)
        return DistantServer(self.options.server, self.options.model)

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
        self.refresh_status()
        self.watching.draw()
        self.meter.measure_soon()

    def _watch_terminal(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._vanish)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.call_later, self.action_quit)
        watch_hangup(loop, self._vanish, self.options.keeper)

    def _vanish(self) -> None:
        """The terminal is gone: nothing can be drawn, and trying to would spin or block."""
        self.chats.close(self._last_words("interrupted"), wait_s=1.5)
        os._exit(HANGUP_EXIT)

    def _last_words(self, status: Status) -> Callable[[History], None]:
        asker = self.asker
        if asker.entry is not None:
            asker.entry.text = asker.text
        return self.chats.last_words(asker.answer, asker.entry, self.drafts.text, status)

    async def action_quit(self) -> None:
        self._farewell = self._last_words("stopped")
        self.exit()

    def close(self) -> None:
        """After the interface has left the terminal."""
        self.chats.close(self._farewell)

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
        await self.drafts.save()  # a command that leaves the chat is not what was left unsent in it
        await self.run_deed(name, words)

    def take_prompt(self, text: str) -> None:
        """`text` is sent: it leaves the prompt, what was typed behind it stays."""
        self.prompt.take(text)
        self.drafts.changed()
        self.label()

    def answer(self, entry: Entry, *, goes_on: bool = False) -> None:
        """Has `entry` answered; what happens now matters more than any hint."""
        self.status.say("")
        self.meter.forget()
        self.run_work(self.asker.run(self.chats.open, entry, self.mode, goes_on=goes_on))
        self.asker.waiting(self.refresh_status())

    def run_work(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that keeps the engine busy like an answer, and may end in one."""
        self._works += 1
        self._ticks.resume()
        self.run_worker(self._work(work), group="work")

    async def _work(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._works -= 1
            if not self.is_answering:
                self._ticks.pause()
            self.refresh_status()
            self.watching.ended()
            self.meter.measure_soon()

    @property
    def is_answering(self) -> bool:
        return self._works > 0

    def show_waiting(self) -> None:
        """Says what goes on, until an answer's text says it better."""
        if not self.asker.has_text:
            self.asker.waiting(self.refresh_status())

    def _tick(self) -> None:
        """While an answer is on its way, unless its text keeps coming and brings the numbers along."""
        if time.monotonic() - self._status_at > _STATUS_S:
            self.asker.waiting(self.refresh_status())

    async def _drawn(self) -> None:
        """Waits until the screen shows what was changed, with new numbers in the same update."""
        if time.monotonic() - self._status_at > _STATUS_S / 2:
            self.refresh_status()
        self.watching.draw()
        done = asyncio.Event()
        if self.call_after_refresh(done.set):
            await done.wait()

    def _failed(self, error: S2Error, entry: Entry, goes_on: bool) -> None:
        asked = entry if goes_on else entry.parent
        if not goes_on and asked is not None and asked.status == "error" and not self.prompt.text:
            self.prompt.text = asked.text
        self.notice(error.line())
        if isinstance(error, ContextFull) and asked is not None and not self.lack("room"):
            self.run_worker(self.room.offer(error.message, asked, goes_on))

    def refresh_status(self) -> str:
        self.board.set_mode(self.mode)
        last = self.chats.open.last_answer
        status = self.board.status(self.asker.answer, self.asker.stopping, last, self.meter)
        self._status_at = time.monotonic()
        self.status.show(status)
        return status.words

    # Keys

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, Key) and not event.is_forwarded:
            await settle(self, event.key)
        await super().on_event(event)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        # These keys belong to the chat; a list or the help on top of it has its own.
        return "quit" in (action, *parameters) or len(self.screen_stack) == 1

    async def action_stop(self) -> None:
        if self.turns.chosen is not None:
            self.turns.choose(None)
        elif not await self.stage.leave() and not self.turns.leave_edit():
            self.stopping.stop()

    async def action_stop_or_copy(self) -> None:
        await self.stopping.interrupt()

    async def action_deed(self, name: str) -> None:
        row = deed(name)
        if row is not None and self.is_answering and not row.anytime:
            self.hint(BUSY)
        else:
            await self.run_deed(name)

    async def run_deed(self, name: str, words: str = "") -> None:
        row = deed(name)
        if missing := self.lack(name):
            self.hint(self.not_here(missing))
        elif row is not None:
            await row.run(self, words)

    def lack(self, name: str) -> str:
        """What the engine cannot do that the command `name` needs, "" when it can be used."""
        return lack(self.link.offer, name)

    def not_here(self, missing: str) -> str:
        return f"{one_line(self.link.offer.place, 40)} {missing}."

    def action_block(self, number: int) -> None:
        self.copying.block(self.copying.answer, number)

    async def action_move(self, step: int) -> None:
        if self.stage.hides_transcript:  # where the messages are that are about to be chosen from
            await self.stage.close()
        self.turns.move(step)

    async def action_chosen(self, what: str) -> None:
        await self.turns.key(what)

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:  # noqa: ARG002
        return commands(self)

    async def action_help(self) -> None:
        await self.push_screen(HelpScreen(self.lack))

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
        self.meter.measure_soon()

    def label(self) -> None:
        """What stands in the prompt's frame."""
        self.prompt.tell(
            title=matching(self.prompt.text, self.prompt.title_width)
            or self.turns.words
            or self.attachments.words,
            keys=self._choosing if self.turns.chosen is not None else "",
            context_size=self.board.context_size,
            too_long=self.meter.too_long,
        )

    @property
    def _choosing(self) -> str:
        return _CHOOSING.replace(" g on ·", "") if self.lack("continue") else _CHOOSING

    @property
    def system(self) -> str:
        return self.asker.system_of(self.chats.open)

    # Words to the user

    def hint(self, text: str) -> None:
        self.status.say(text)

    def notice(self, text: str) -> None:
        """Stays in the transcript, because it may be read much later."""
        if not self.restored.is_set():
            self._early_notices.append(text)  # the chat that is about to be shown would hide it
        elif self.is_running:
            self.transcript.add(Message("notice", text))
