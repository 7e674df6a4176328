"""Asks the engine and puts the answer into the conversation, one answer at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from app.answer import Answer
from app.conversation import told
from app.labels import foot
from app.pace import Pace
from engine.errors import BadRequest, ContextFull, EngineUnavailable, S2Error

if TYPE_CHECKING:
    from app.conversation import Conversation, Entry
    from app.history import Status
    from app.link import EngineLink
    from app.options import ChatOptions
    from app.transcript import Transcript
    from engine.client import EngineClient

_STATUS_OF_END: dict[str, Status] = {"stopped": "stopped", "crashed": "interrupted", "error": "error"}


class Asker:
    """`drawn` waits until the screen shows what was changed.

    `failed` gets an error the user has to read, and the prompt's text when it may have to be changed.
    """

    def __init__(
        self,
        link: EngineLink,
        transcript: Transcript,
        options: ChatOptions,
        drawn: Callable[[], Awaitable[None]],
        failed: Callable[[S2Error, str], None],
    ) -> None:
        self.answer: Answer | None = None
        self.stopping = False
        self._entry: Entry | None = None
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

    async def run(self, conversation: Conversation, entry: Entry, mode: str) -> None:
        """Until the answer is over, however it ends."""
        self._task = asyncio.current_task()
        self._entry = entry
        self.answer = Answer(self._show, lambda text: conversation.save_partial(entry, text), self._pace)
        end = ""
        try:
            end = await self._ask(conversation, entry, mode)
        except asyncio.CancelledError:
            end = "stopped"
        finally:
            answer, self.answer, self._entry = self.answer, None, None
            self.stopping = False
            entry.text, entry.mode = answer.text, answer.mode or mode
            entry.view.close(foot(end, entry.mode, answer.timings))
            self._transcript.redraw(entry.view)
        await conversation.finish(entry, _STATUS_OF_END.get(end, "done"), end, answer.timings)

    async def _ask(self, conversation: Conversation, entry: Entry, mode: str) -> str:
        """How the answer ended: a key of `labels.ENDS`, or another word for its normal end."""
        answer = self.answer
        assert answer is not None
        self.waiting("thinking")
        try:
            self._client = await self._link.client()
            options = {**self._options.request, **({"mode": mode} if mode else {})}
            await answer.run(self._client, told(conversation.entries, self._options.system), options)
        except EngineUnavailable:
            # The link finds out why and says so.
            return "error" if self._link.model_failed else "crashed"
        except (ContextFull, BadRequest) as error:
            self._failed(error, await conversation.refuse(entry))
            return "error"
        except S2Error as error:
            self._failed(error, "")
            return "error"
        finally:
            self._client = None
        return "stopped" if answer.finish == "cancel" else answer.finish

    async def _show(self, piece: str) -> None:
        entry = self._entry
        assert entry is not None
        entry.view.foot = ""
        entry.view.append(piece)
        self._transcript.redraw(entry.view)
        await self._drawn()

    def waiting(self, words: str) -> None:
        """Shows in the answer's place why there is none yet."""
        if self._entry is not None and self.answer is not None and not self.answer.text:
            self._entry.view.foot = f"{words} …"
            self._transcript.redraw(self._entry.view)

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
