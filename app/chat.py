"""The chat interface: puts the widgets together and turns keys into actions."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import TextArea

from app.asker import Asker
from app.board import Board
from app.conversation import Conversation, restored
from app.copy import copy_out
from app.help import WELCOME, HelpScreen
from app.history import Conversation as Chat
from app.history import History, Status, Stored
from app.link import EngineLink
from app.message import Message
from app.picker import PickerScreen
from app.prompt import Prompt
from app.recorder import Recorder
from app.statusline import StatusLine
from app.terminal import HANGUP_EXIT, watch_hangup
from app.text import one_line
from app.transcript import Transcript

if TYPE_CHECKING:
    from textual.worker import Worker

    from app.conversation import Entry
    from app.options import ChatOptions
    from engine.errors import S2Error
    from engine.messages import Snapshot
    from engine.paths import Paths

_DRAFT_S = 1.0
_STATUS_S = 0.5
_ALWAYS = ("quit", "command_palette")


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
        self._paths = paths
        self._options = options
        self._recorder = Recorder(paths.history, self._notice)
        self._conversation = Conversation(self._recorder)
        self._board = Board()
        self._mode = options.mode  # "" leaves it to the engine
        self._known_notices: set[str] = set()
        self._worker: Worker[None] | None = None
        self._restored = asyncio.Event()
        self._draft_changed = False
        self._farewell: Callable[[History], None] | None = None

    def compose(self) -> ComposeResult:
        yield Transcript(WELCOME)
        yield StatusLine()
        yield Prompt()

    @property
    def transcript(self) -> Transcript:
        return self.query_one(Transcript)

    @property
    def prompt(self) -> Prompt:
        return self.query_one(Prompt)

    # Life

    async def on_mount(self) -> None:
        self._link = EngineLink(self._paths, self._options.load, self)
        self._asker = Asker(self._link, self.transcript, self._options, self._drawn, self._failed)
        self.prompt.focus()
        self.run_worker(self._link.run(), group="engine")
        self._ticks = self.set_interval(_STATUS_S, self._tick, pause=True)
        self.set_interval(_DRAFT_S, self._save_draft)
        if not self.is_headless:
            self._watch_terminal()
        await self._recorder.open()
        await self._restore()
        self._restored.set()

    async def _restore(self) -> None:
        """Opens the last chat that no other window has open, with the prompt that was not sent."""
        remembered = await self._recorder.call(lambda h: h.setting("mode"), "")
        self._mode = self._mode or remembered
        last = await self._recorder.call(lambda h: h.last(), None)
        if last is not None:
            await self._open(last.id, last.draft)

    async def _open(self, conversation: int, draft: str) -> None:
        if not await self._recorder.call(lambda h: h.claim(conversation), False):
            self._notice("that chat is open in another window")
            return
        stored = await self._recorder.call(lambda h: h.messages(conversation), list[Stored]())
        self._conversation = restored(self._recorder, conversation, stored)
        self.transcript.load(self._conversation.views)
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
        self._recorder.close(self._last_words("interrupted"), wait_s=1.5)
        os._exit(HANGUP_EXIT)

    def _last_words(self, status: Status) -> Callable[[History], None]:
        """What is still to be stored, taken now: the text so far and the unsent prompt."""
        answer, entry, draft = self._asker.answer, self._conversation.last_answer, self.prompt.text
        conversation = self._conversation.id
        message = entry.id if entry and answer else None
        text = answer.text if answer else ""

        def store(history: History) -> None:
            if message is not None:
                history.finish(message, text, status, {"end": status})
            if conversation is not None or draft:
                history.save_draft(conversation or history.create(), draft)

        return store

    async def action_quit(self) -> None:
        self._farewell = self._last_words("stopped")
        self.exit()

    def close(self) -> None:
        """After the interface has left the terminal."""
        self._recorder.close(self._farewell)

    # What the engine link reports

    def engine_state(self, snapshot: Snapshot) -> None:
        self._board.snapshot = snapshot
        self._board.set_mode(self._mode)
        for text in (*snapshot.notices, *([snapshot.error] if snapshot.error else [])):
            if text not in self._known_notices:
                self._known_notices.add(text)
                self._notice(text)
        if not self._is_answering:
            self._refresh_status()

    def engine_waiting(self, words: str) -> None:
        self._board.lost(words, problem=False)
        self._refresh_status()

    def engine_problem(self, error: S2Error) -> None:
        self._notice(error.line())
        self._board.lost(one_line(error.message), problem=True)
        self._refresh_status()

    def engine_careful(self) -> None:
        self._notice("the engine starts again with a smaller context and plain decode")
        self._mode = "ar"

    # Asking

    @property
    def _is_answering(self) -> bool:
        return self._worker is not None and not self._worker.is_finished

    async def on_prompt_sent(self, event: Prompt.Sent) -> None:
        if self._is_answering:
            self._hint("An answer is being written. Esc stops it.")
            return
        await self._restored.wait()
        self.prompt.clear()
        self._draft_changed = False
        entry = await self._conversation.begin(event.text, self._mode)
        for view in self._conversation.views[-2:]:
            self.transcript.add(view)
        self._answer(entry)

    async def action_again(self) -> None:
        if self._is_answering:
            return
        old = self._conversation.last_answer
        entry = await self._conversation.begin_again(self._mode)
        if entry is None or old is None:
            self._hint("There is no answer to ask for again.")
            return
        self.transcript.take_out(old.view)
        self.transcript.add(entry.view)
        self._answer(entry)

    def _answer(self, entry: Entry) -> None:
        self._worker = self.run_worker(self._asker.run(self._conversation, entry, self._mode), group="answer")
        self._ticks.resume()
        self._tick()

    def _tick(self) -> None:
        """Twice a second while an answer is on its way, and once after it."""
        if not self._is_answering:
            self._ticks.pause()
        self._asker.waiting(self._refresh_status())

    async def _drawn(self) -> None:
        done = asyncio.Event()
        if self.call_after_refresh(done.set):
            await done.wait()

    def _failed(self, error: S2Error, prompt: str) -> None:
        self._notice(error.line())
        if prompt and not self.prompt.text:
            self.prompt.text = prompt

    def _refresh_status(self) -> str:
        last = self._conversation.last_answer
        status = self._board.status(self._asker.answer, self._asker.stopping, last.timings if last else None)
        self.query_one(StatusLine).show(status)
        return status.words

    # Keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        # These keys belong to the chat; a list or the help on top of it has its own.
        return action in _ALWAYS or len(self.screen_stack) == 1

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
        entry = self._conversation.last_answer
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
        await self._recorder.call(lambda h: h.set_setting("mode", name), None)

    async def action_new(self) -> None:
        if self._is_answering:
            self._hint("An answer is being written. Esc stops it.")
            return
        # What is being typed moves along, because a full context is a reason to start a new chat.
        await self._conversation.save_draft("")
        await self._recorder.call(lambda h: h.release(), None)
        self._conversation = Conversation(self._recorder)
        self._draft_changed = bool(self.prompt.text)
        self.transcript.load([])
        self._refresh_status()

    async def action_open(self) -> None:
        if self._is_answering:
            self._hint("An answer is being written. Esc stops it.")
            return
        await self._save_draft()
        chats = await self._recorder.call(lambda h: h.conversations(), list[Chat]())
        others = [chat for chat in chats if chat.id != self._conversation.id]
        if not others:
            self._hint("There is no other chat yet.")
            return
        drafts = {chat.id: chat.draft for chat in others}

        async def opened(chosen: int | None) -> None:
            if chosen is not None:
                self.prompt.clear()
                await self._open(chosen, drafts[chosen])

        await self.push_screen(PickerScreen(others), opened)

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

    async def _save_draft(self) -> None:
        if self._draft_changed and self._restored.is_set():
            self._draft_changed = False
            text = self.prompt.text
            self.prompt.warn_if_long(len(text), self._board.context_size)
            await self._conversation.save_draft(text)

    # Words to the user

    def _hint(self, text: str) -> None:
        self.notify(text, timeout=3, markup=False)

    def _notice(self, text: str) -> None:
        """Stays in the transcript, because it may be read much later."""
        if self.is_running:
            self.transcript.add(Message("notice", text))
