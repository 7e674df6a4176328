"""The command that compares two modes; the chat changes only when one of the answers is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.comparescreen import CompareScreen
from app.comparison import Comparison, modes_of
from app.conversation import told
from app.entry import Entry
from engine.errors import S2Error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from app.chat import ChatApp
    from app.comparison import Side
    from engine.messages import ChatChunk


@dataclass(frozen=True, slots=True)
class _Question:
    """`path` ends with what is asked; `answered` is its answer in the chat, None for a new question."""

    path: list[Entry]
    answered: Entry | None


class Comparing:
    def __init__(self, app: ChatApp) -> None:
        self._app = app

    async def compare(self, words: str) -> None:
        """`words`: the modes, then a question; without one what stands in the prompt, else the last one."""
        app = self._app
        modes = [mode.name for mode in app.board.snapshot.modes] if app.board.snapshot else []
        if not modes:
            app.hint("The engine has not said yet which modes it knows.")
            return
        try:
            pair, text = modes_of(words, modes, app.board.mode.name if app.board.mode else "")
        except S2Error as error:
            app.hint(error.line())
            return
        question = self._question(text or app.prompt.text.strip())
        if question is None:
            app.hint("There is no question yet. /compare MODE,MODE QUESTION asks one.")
            return
        app.run_work(self._run(question, pair))

    def _question(self, text: str) -> _Question | None:
        app = self._app
        entries = list(app.chats.open.entries)
        if text:
            asked = Entry("user", text, "done", files=tuple(app.attachments.files))
            return _Question([*entries, asked], None)
        answer = app.chats.open.last_answer
        if answer is None or answer.parent is None or answer.parent.role != "user":
            return None
        return _Question(entries[: entries.index(answer)], answer)

    async def _run(self, question: _Question, pair: tuple[str, str]) -> None:
        app = self._app
        messages = told(question.path, app.system)
        try:
            client = await app.link.client()
        except S2Error as error:
            app.notice(error.line())
            return

        def ask(options: Mapping[str, Any]) -> AsyncIterator[ChatChunk]:
            return client.chat(messages, options=options)

        comparison = Comparison(ask, pair, app.asker.options_for(app.chats.open))
        labels = [str(app.board.label_of(mode) or mode) for mode in pair]
        screen = CompareScreen(question.path[-1].text, comparison, (labels[0], labels[1]))
        if (taken := await app.push_screen_wait(screen)) is not None:
            await self._take(question, comparison.sides[taken])

    async def _take(self, question: _Question, side: Side) -> None:
        """The answer goes into the chat: beside the one that is there, or with its new question."""
        app, chat = self._app, self._app.chats.open
        if question.answered is not None:
            entry = await chat.begin_again(question.answered, side.mode)
        else:
            text = question.path[-1].text
            app.take_prompt(text)
            entry = await chat.begin(text, side.mode, app.attachments.take())
        entry.text, entry.mode = side.text, side.ran or side.mode
        await chat.finish(entry, "done", side.finish, side.timings)
        app.show_path()
