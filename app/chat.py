"""The chat interface: puts the widgets together and turns keys into actions."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.widgets import TextArea

from app.asker import Asker
from app.board import Board
from app.colours import Colourless
from app.commands import budget_wish, commands
from app.copy import copy_out
from app.help import WELCOME, HelpScreen
from app.library import Library
from app.link import EngineLink
from app.message import Message
from app.picker import PickerScreen
from app.prompt import Prompt
from app.statusline import StatusLine
from app.terminal import HANGUP_EXIT, watch_hangup
from app.text import one_line
from app.transcript import Transcript
from engine.errors import S2Error

if TYPE_CHECKING:
    from textual import events
    from textual.screen import Screen
    from textual.theme import Theme
    from textual.timer import Timer

    from app.conversation import Entry
    from app.history import Conversation as Chat
    from app.history import History, Status
    from app.options import ChatOptions
    from engine.messages import Snapshot
    from engine.paths import Paths

_DRAFT_S = 0.1  # what is typed may be lost for this long
_LONG_DRAFT_S = 1.0  # a pasted book is not written to the disk ten times a second
_LONG_DRAFT = 100_000
_STATUS_S = 1.0


def _key(keys: str, action: str, text: str) -> Binding:
    # Before the prompt, which would take some of them for itself.
    return Binding(keys, action, text, show=False, priority=True)


class ChatApp(App[None]):
    CSS_PATH = "app.tcss"
    TITLE = "s2chat"
    BINDINGS: ClassVar[list[BindingType]] = [
        _key("ctrl+q", "quit", "Quit"),
        _key("f1", "help", "Keys"),
        _key("escape", "stop", "Stop the answer"),
        _key("ctrl+c", "stop_or_copy", "Stop the answer"),
        _key("ctrl+t,f2", "next_mode", "Next mode"),
        _key("ctrl+r", "again", "Ask again"),
        _key("ctrl+n", "new", "New chat"),
        _key("ctrl+o", "open", "Open a chat"),
        _key("ctrl+y", "copy", "Copy the last answer"),
        _key("pageup", "scroll(-1)", "Scroll up"),
        _key("pagedown", "scroll(1)", "Scroll down"),
        _key("ctrl+home", "scroll_home", "To the start"),
        _key("ctrl+end", "scroll_end", "To the end"),
    ]

    def __init__(self, paths: Paths, options: ChatOptions) -> None:
        super().__init__()
        if self.no_color:
            self._filters = [Colourless()]
        self._paths = paths
        self._options = options
        # Kept, because a query only looks at the screen on top, which may be the help.
        self.transcript = Transcript(WELCOME)
        self.status = StatusLine()
        self.prompt = Prompt()
        self._library = Library(paths, self._notice)
        self._board = Board()
        self._mode = options.mode  # "" leaves it to the engine
        self._early_notices: list[str] = []
        self._known_notices: set[str] = set()
        self._is_answering = False
        self._restored = asyncio.Event()
        self._draft_changed = False
        self._draft_length = 0
        self._draft_timer: Timer | None = None
        self._status_at = 0.0
        self._farewell: Callable[[History], None] | None = None

    def compose(self) -> ComposeResult:
        yield from (self.transcript, self.status, self.prompt)

    def on_resize(self, event: events.Resize) -> None:
        # In the style sheet a share of a very low screen would leave no line to type in.
        self.prompt.styles.max_height = max(3, event.size.height * 3 // 10)

    # Life

    async def on_mount(self) -> None:
        self._link = EngineLink(self._paths, self._options.load, self)
        self._asker = Asker(self._link, self.transcript, self._options, self._drawn, self._failed)
        self.prompt.focus()
        self.run_worker(self._link.run(), group="engine")
        self._ticks = self.set_interval(_STATUS_S, self._tick, pause=True)
        if not self.is_headless:
            self._watch_terminal()
        draft = await self._library.start()
        self._mode = self._mode or await self._library.mode()
        await self._restore_theme()
        self._show_chat(draft)
        self._restored.set()
        self._save_soon()
        for text in self._early_notices:
            self._notice(text)
        gc.freeze()  # what is here stays; looking through it again and again took a tenth of drawing

    async def _restore_theme(self) -> None:
        theme = await self._library.theme()
        if theme in self.available_themes:  # another version may have had others
            self.theme = theme
        self.theme_changed_signal.subscribe(self, self._remember_theme)

    async def _remember_theme(self, theme: Theme) -> None:
        await self._library.remember_theme(theme.name)

    def _show_chat(self, draft: str) -> None:
        self.transcript.load(self._library.open.views)
        if draft and not self.prompt.text:
            self.prompt.text = draft
            self.prompt.move_cursor(self.prompt.document.end)
        self._refresh_status()

    def _watch_terminal(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self._vanish)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.call_later, self.action_quit)
        watch_hangup(loop, self._vanish)

    def _vanish(self) -> None:
        """The terminal is gone: nothing can be drawn, and trying to would spin or block."""
        self._library.close(self._last_words("interrupted"), wait_s=1.5)
        os._exit(HANGUP_EXIT)

    def _last_words(self, status: Status) -> Callable[[History], None]:
        return self._library.last_words(self._asker.answer, self.prompt.text, status)

    async def action_quit(self) -> None:
        self._farewell = self._last_words("stopped")
        self.exit()

    def close(self) -> None:
        """After the interface has left the terminal."""
        self._library.close(self._farewell)

    # What the engine link reports

    def engine_state(self, snapshot: Snapshot) -> None:
        self._board.snapshot = snapshot
        for text in (*snapshot.notices, *([snapshot.error] if snapshot.error else [])):
            if text not in self._known_notices:
                self._known_notices.add(text)
                self._notice(text)
        if not self._asker.has_text:
            self._asker.waiting(self._refresh_status())

    def engine_waiting(self, words: str) -> None:
        self._board.lost(words, problem=False)
        self._refresh_status()

    def engine_problem(self, error: S2Error) -> None:
        self._notice(_readable(error))
        self._board.lost(one_line(error.message.partition("\n")[0]), problem=True)
        self._refresh_status()

    def engine_careful(self) -> None:
        self._notice("the engine starts again with less memory, a smaller context and plain decode")
        self._mode = "ar"

    # Asking

    async def on_prompt_sent(self, event: Prompt.Sent) -> None:
        wish = budget_wish(event.text)
        if wish is not None:
            self.prompt.take(event.text)
            self.run_worker(self._change_budget(wish), group="budget")
            return
        if self._is_answering:
            self._hint("An answer is being written. Esc stops it.")
            return
        await self._restored.wait()
        self.prompt.take(event.text)
        self.prompt.warn_if_long(len(self.prompt.text), self._board.context_size)
        self._draft_changed = bool(self.prompt.text)
        entry = await self._library.open.begin(event.text, self._mode)
        for view in self._library.open.views[-2:]:
            self.transcript.add(view)
        self._answer(entry)

    async def _change_budget(self, wish: str) -> None:
        try:
            client = await self._link.client()
            self._notice(await client.change_budget(wish) if wish else self._board.memory_words)
        except S2Error as error:
            self._notice(error.line())

    async def action_again(self) -> None:
        if self._is_answering:
            return
        old = self._library.open.last_answer
        entry = await self._library.open.begin_again(self._mode)
        if entry is None or old is None:
            self._hint("There is no answer to ask for again.")
            return
        self.transcript.take_out(old.view)
        self.transcript.add(entry.view)
        self._answer(entry)

    def _answer(self, entry: Entry) -> None:
        self._is_answering = True
        self.status.say("")  # what happens now matters more than any hint
        self.run_worker(self._await_answer(entry), group="answer")
        self._ticks.resume()
        self._asker.waiting(self._refresh_status())

    async def _await_answer(self, entry: Entry) -> None:
        try:
            await self._asker.run(self._library.open, entry, self._mode)
        finally:
            self._is_answering = False
            self._ticks.pause()
            self._refresh_status()

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

    def _failed(self, error: S2Error, prompt: str) -> None:
        self._notice(error.line())
        if prompt and not self.prompt.text:
            self.prompt.text = prompt

    def _refresh_status(self) -> str:
        self._board.set_mode(self._mode)
        last = self._library.open.last_answer
        status = self._board.status(self._asker.answer, self._asker.stopping, last)
        self._status_at = time.monotonic()
        self.status.show(status)
        return status.words

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        # These keys belong to the chat; a list or the help on top of it has its own.
        return action == "quit" or len(self.screen_stack) == 1

    async def action_stop(self) -> None:
        await self._asker.stop()
        self._refresh_status()

    async def action_stop_or_copy(self) -> None:
        if self._is_answering:
            await self.action_stop()
        elif selected := self.screen.get_selected_text():
            self.copy_to_clipboard(selected)
            self._hint("Copied.")
        else:
            self._hint("Ctrl+Q quits.")

    def action_copy(self) -> None:
        entry = self._library.open.last_answer
        answer = self._asker.answer
        text = answer.text if answer else entry.text if entry else ""
        if text:
            self._hint(copy_out(self.copy_to_clipboard, text, self._paths.state / "last-answer.md"))
        else:
            self._hint("There is no answer to copy yet.")

    async def action_next_mode(self) -> None:
        name = self._board.mode_after(self._mode)
        if not name:
            self._hint("The engine has not said yet which modes it knows.")
            return
        self._mode = name
        self._hint(self._board.set_mode(name))
        self._refresh_status()
        await self._library.remember_mode(name)

    async def action_new(self) -> None:
        if self._is_answering:
            self._hint("An answer is being written. Esc stops it.")
            return
        # What is being typed moves along, because a full context is a reason to start a new chat.
        await self._library.new()
        self._draft_changed = bool(self.prompt.text)
        self._show_chat("")

    async def action_open(self) -> None:
        if self._is_answering:
            self._hint("An answer is being written. Esc stops it.")
            return
        await self._save_draft()
        others = await self._library.others()
        if not others:
            self._hint("There is no other chat yet.")
            return

        async def chosen(chat: Chat | None) -> None:
            if chat is None:
                return
            if await self._library.switch(chat.id):
                self.prompt.clear()
                self._show_chat(chat.draft)
            else:
                self._hint("That chat is open in another window.")

        await self.push_screen(PickerScreen(others), chosen)

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

    # The prompt's draft

    def on_text_area_changed(self, _: TextArea.Changed) -> None:
        self._draft_changed = True
        self._save_soon()

    def _save_soon(self) -> None:
        if self._draft_timer is None:
            seconds = _DRAFT_S if self._draft_length < _LONG_DRAFT else _LONG_DRAFT_S
            self._draft_timer = self.set_timer(seconds, self._save_draft)

    async def _save_draft(self) -> None:
        self._draft_timer = None
        if self._draft_changed and self._restored.is_set():
            self._draft_changed = False
            text = self.prompt.text
            self._draft_length = len(text)
            self.prompt.warn_if_long(len(text), self._board.context_size)
            # What could not be saved goes with the next change, or at the end.
            self._draft_changed = not await self._library.open.save_draft(text) or self._draft_changed

    # Words to the user

    def _hint(self, text: str) -> None:
        self.status.say(text)

    def _notice(self, text: str) -> None:
        """Stays in the transcript, because it may be read much later."""
        if not self._restored.is_set():
            self._early_notices.append(text)  # the chat that is about to be shown would hide it
        elif self.is_running:
            self.transcript.add(Message("notice", text))


def _readable(error: S2Error) -> str:
    """What happened and what to do, with the first of a log's last lines."""
    return "\n".join([*error.message.splitlines()[:4], *([error.hint] if error.hint else [])])
