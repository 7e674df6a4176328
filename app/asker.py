"""Asks the engine and puts the answer into the conversation, one answer at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.answer import Answer
from app.conversation import told
from app.labels import awaited, foot
from app.pace import Pace
from app.sampling import request_fields
from engine.errors import BadRequest, ContextFull, EngineUnavailable, S2Error
from engine.request import is_lossy

if TYPE_CHECKING:
    from app.conversation import Conversation
    from app.entry import Entry
    from app.history import Status
    from app.link import EngineLink
    from app.options import ChatOptions
    from app.transcript import Transcript
    from engine.client import EngineClient

_STATUS_OF_END: dict[str, Status] = {
    "stopped": "stopped",
    "crashed": "interrupted",
    "broken": "interrupted",
    "error": "error",
}


class Asker:
    """`drawn` waits until the screen shows what was changed.

    `failed` gets an error the user has to read, the answer that so did not come, and whether it was to go on.
    """

    def __init__(
        self,
        link: EngineLink,
        transcript: Transcript,
        options: ChatOptions,
        drawn: Callable[[], Awaitable[None]],
        failed: Callable[[S2Error, Entry, bool], None],
    ) -> None:
        self.answer: Answer | None = None
        self.stopping = False
        self.entry: Entry | None = None
        self.head = ""  # what an answer that goes on had already
        self.watched = False  # answers show their blocks
        self.finished: Entry | None = None  # the last answer that is over
        self._refusal: S2Error | None = None
        self._task: asyncio.Task[None] | None = None
        self._client: EngineClient | None = None
        self._link = link
        self._transcript = transcript
        self._options = options
        self._drawn = drawn
        self._failed = failed
        self._pace = Pace()

    @property
    def has_text(self) -> bool:
        return self.answer is not None and bool(self.answer.text)

    async def run(
        self, conversation: Conversation, entry: Entry, mode: str, *, goes_on: bool = False
    ) -> None:
        """Until the answer is over, however it ends. `goes_on`: what `entry` has already is its beginning."""
        self._task = asyncio.current_task()
        self.entry, self.head, before = entry, entry.text, entry.mode
        self.answer = Answer(
            self._show,
            lambda _: conversation.save_partial(entry, self.text),
            self._pace,
            mode,
            begun_lossy=is_lossy(before),
        )
        entry.mode = entry.mode_after(mode)  # also for what is stored when the program ends meanwhile
        end = ""
        try:
            end = await self._ask(conversation, entry, mode, goes_on)
        except asyncio.CancelledError:
            end = "stopped"
        finally:
            entry.text, answer = self.text, self.answer
            self.answer, self.entry, self.stopping = None, None, False
            self.finished = entry
            entry.mode = before
            if answer.text or not goes_on:
                entry.mode = entry.mode_after(answer.mode or (mode if self._link.offer.is_ours else ""))
                entry.timings = answer.timings or entry.timings
            if end == "error" and goes_on:
                end = "stopped"  # what it had is still an answer
            entry.view.close(foot(end, entry.mode, entry.timings, exact=answer.exact))
            self._transcript.redraw(entry.view)
        await conversation.finish(entry, _STATUS_OF_END.get(end, "done"), end, entry.timings)
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            self._failed(refusal, entry, goes_on)

    async def digest(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> str:
        """A text that is no part of the conversation; "" when it was stopped. Raises S2Error."""
        self._task = asyncio.current_task()
        self.answer = Answer(_nowhere, lambda _: None, self._pace)
        try:
            self._client = await self._link.client()
            await self.answer.run(self._client, messages, options)
            return "" if self.answer.finish == "cancel" else self.answer.text
        except asyncio.CancelledError:
            return ""
        finally:
            self.answer, self._client, self.stopping = None, None, False

    @property
    def text(self) -> str:
        """All of the answer that is being written."""
        return self.head + (self.answer.text if self.answer else "")

    async def _ask(self, conversation: Conversation, entry: Entry, mode: str, goes_on: bool) -> str:
        """How the answer ended: a key of `labels.ENDS`, or another word for its normal end."""
        answer = self.answer
        assert answer is not None
        self.waiting(awaited(self._link.offer.place))
        try:
            self._client = await self._link.client()
            options = {**self.options_for(conversation), **({"mode": mode} if mode else {})}
            if self.watched:
                options["return_blocks"] = True
            last = entry if goes_on else None
            if goes_on:
                options["continue_final_message"] = True
            await answer.run(
                self._client, told(conversation.entries, self.system_of(conversation), last), options
            )
        except EngineUnavailable:
            # The link finds out why and says so.
            if self._link.offer.is_remote:
                return "broken"
            return "error" if self._link.model_failed else "crashed"
        except S2Error as error:
            if error is self._link.problem:
                return "error"  # said already, and not about this question
            if isinstance(error, (ContextFull, BadRequest)) and not goes_on:
                await conversation.refuse(entry)
            self._refusal = error
            return "error"
        finally:
            self._client = None
        return "stopped" if answer.finish == "cancel" else answer.finish

    def options_for(self, conversation: Conversation) -> dict[str, Any]:
        """The fields of a request: those of the command line, then what this chat changed."""
        changed = request_fields(conversation.sampling, self._link.card)
        return {**self._options.request, **changed, "reasoning_format": "none"}

    def system_of(self, conversation: Conversation) -> str:
        return self._options.system if conversation.system is None else conversation.system

    async def _show(self, piece: str) -> None:
        entry = self.entry
        assert entry is not None
        entry.view.foot = ""
        entry.view.append(piece)
        self._transcript.redraw(entry.view)
        await self._drawn()

    def waiting(self, words: str) -> None:
        """Shows in the answer's place why there is none yet."""
        if self.entry is not None and self.answer is not None and not self.answer.text:
            self.entry.view.foot = f"{words} …"
            self._transcript.redraw(self.entry.view)

    async def stop(self) -> None:
        """Stops the engine's work and keeps the text; a second call does not wait for the engine."""
        answer, client, task = self.answer, self._client, self._task
        if answer is None or task is None:
            return
        if client is None or self.stopping:
            task.cancel()
            return
        self.stopping = True
        try:
            known = await client.cancel(answer.request_id)
        except S2Error:
            known = False
        if not known and self.answer is answer:
            task.cancel()

    async def watch_running(self) -> None:
        """Has the answer that is being written show its blocks, or no longer, as `watched` says."""
        if self.entry is not None and self.answer is not None and self._client is not None:
            with contextlib.suppress(S2Error):  # what is wrong shows in the answer itself
                await self._client.watch(self.answer.request_id, self.watched)


async def _nowhere(_: str) -> None:
    """Nobody watches a summary grow."""
