"""Makes room in a context that is full, in the way the user chooses. Nothing is left out in silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.choice import Choice, ChoiceScreen
from app.conversation import tellable, told
from app.entry import CUT, Entry
from engine.errors import ContextFull, S2Error
from engine.thoughts import split

if TYPE_CHECKING:
    from app.chat import ChatApp

TRIM, SUMMARISE, NEW = "trim", "summarise", "new"

_CHOICES = (
    Choice(TRIM, "Trim", "leave out the oldest messages"),
    Choice(SUMMARISE, "Summarise", "put a summary in their place"),
    Choice(NEW, "New chat", "with what you typed"),
)
_ASK = "Summarise the conversation below in at most 150 words: facts, names, decisions, open questions.\n\n"


class Room:
    """A quarter of the context stays free for the answer, an eighth more for a summary."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app

    async def offer(self, said: str, refused: Entry | None, goes_on: bool) -> None:
        """Asks what to do. `refused` is the question that did not fit, or the answer that was to go on.

        `said`: why it did not, "" where nothing was refused. A question that does not fit alone is only to be
        shortened.
        """
        app = self._app
        if refused is not None and refused.role == "user" and await self._is_too_long(refused):
            return

        async def chosen(name: str | None) -> None:
            if name == NEW:
                await app.run_deed("new")
            elif name is not None:
                app.run_work(self._make(name == SUMMARISE, refused, goes_on))

        size, used = app.board.context_size, app.board.context_used(app.chats.open.last_answer, app.meter)
        said = said or app.meter.too_long
        title = "The context is full" if said or 0 < size <= used else "Make room in the context"
        taken = f"{used} of {size} tokens are taken." if size else ""
        await app.push_screen(ChoiceScreen(title, _CHOICES, said or taken), chosen)

    async def make(self, *, summarise: bool) -> None:
        """Makes room without being asked by a full context."""
        await self._make(summarise, None, goes_on=False)

    async def _make(self, summarise: bool, refused: Entry | None, goes_on: bool) -> None:
        app, chat = self._app, self._app.chats.open
        question = refused if refused is not None and refused.role == "user" else None
        path = (
            chat.entries[: chat.entries.index(question)] if question in chat.entries else list(chat.entries)
        )
        try:
            dropped, keeps = await self._split(path, question, summarise)
            if not dropped:
                alone = ": this message alone is too long. Shorten it." if question is not None else " yet."
                app.notice(f"There is nothing to leave out{alone}")
                return
            summary = await self._summary(dropped) if summarise else ""
        except S2Error as error:
            app.notice(error.line())
            return
        if summarise and not summary:
            app.hint("No summary, so nothing was left out.")
            return
        if question is not None:
            await chat.take_back(question)
        await chat.cut(keeps, summary)
        app.show_path()
        if question is not None:
            if app.prompt.text == question.text:
                app.prompt.clear()
            entry = await chat.begin(question.text, app.mode, question.files)
            app.show_path()
            app.answer(entry)
        elif goes_on and refused is not None:
            await chat.resume(refused, app.mode)
            app.answer(refused, goes_on=True)

    async def _split(
        self, path: Sequence[Entry], question: Entry | None, summarise: bool
    ) -> tuple[list[Entry], int]:
        """Messages to leave out, as few as possible, and how many stay. Counted by the engine."""
        size = self._app.board.context_size
        limit = size - size // 4 - (size // 8 if summarise else 0)
        entries = _in_force(path)
        # Only whole turns: many templates want a question first.
        starts = [at for at, entry in enumerate(entries) if at and entry.role == "user"] + [len(entries)]
        if question is None and entries:
            starts.pop()  # the last turn stays, or there would be nothing to talk about
            starts = starts or ([len(entries) - 1] if len(entries) > 1 else [])
        low, high = 0, len(starts)
        while low < high:
            middle = (low + high) // 2
            kept = [*entries[starts[middle] :], *([question] if question is not None else [])]
            if await self._count(kept) <= limit:
                high = middle
            else:
                low = middle + 1
        if low == len(starts):  # even the shortest is long; it may fit all the same
            low -= 1
        if low < 0 or (question is not None and await self._count([question]) >= size):
            return [], 0
        return entries[: starts[low]], len(entries) - starts[low]

    async def _is_too_long(self, question: Entry) -> bool:
        try:
            return await self._count([question]) >= self._app.board.context_size
        except S2Error:
            return False

    async def _count(self, entries: Sequence[Entry]) -> int:
        client = await self._app.link.client()
        messages = told([_as_told(entry) for entry in entries], self._app.system)
        if not messages:
            return 0
        try:
            return await client.count(messages)
        except ContextFull:
            return 1 << 30

    async def _summary(self, dropped: Sequence[Entry]) -> str:
        """What the model makes of the messages; "" when it was stopped."""
        size = self._app.board.context_size
        longest = size // 8
        client = await self._app.link.client()
        texts = [f"{'User' if entry.role == 'user' else 'Assistant'}: {entry.told}" for entry in dropped]
        before = next(
            (e.text for e in reversed(self._app.chats.open.entries) if e.role == CUT and e.text), ""
        )
        texts = [f"Summary of what was before: {before}", *texts] if before else texts
        first = 0
        while True:
            ask = [{"role": "user", "content": _ASK + "\n\n".join(texts[first:])}]
            try:
                if await client.count(ask) <= size - longest - 1:
                    break
            except ContextFull:
                pass
            if first + 1 >= len(texts):
                raise ContextFull(
                    "the oldest messages are too long to be summarised", hint="/trim leaves them out"
                )
            first += max(1, (len(texts) - first) // 4)
        if first:
            self._app.notice(
                f"The summary leaves out the {first} oldest messages: they do not fit themselves."
            )
        options = {
            **self._app.asker.options_for(self._app.chats.open),
            "temperature": 0.3,
            "max_tokens": longest,
        }
        options.pop("stop", None)
        return split(await self._app.asker.digest(ask, options))[1].strip()


def _in_force(path: Sequence[Entry]) -> list[Entry]:
    """The messages that the model is told now: those a cut has left."""
    at = next((at for at in range(len(path) - 1, -1, -1) if path[at].role == CUT), None)
    if at is None:
        return tellable(path)
    before = tellable(path[:at])
    return before[max(0, len(before) - path[at].keeps) :] + tellable(path[at + 1 :])


def _as_told(entry: Entry) -> Entry:
    """A question that was refused counts like any other."""
    if entry.status != "error":
        return entry
    return Entry(entry.role, entry.text, "done", files=entry.files)
