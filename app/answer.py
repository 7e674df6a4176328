"""One answer, from the request to its last character: read, shown and saved at a measured pace."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.looks import Looks
from app.pace import Pace
from app.prefill import Prefill
from app.streams import closing
from engine.thoughts import CLOSE, OPEN

if TYPE_CHECKING:
    from engine.client import EngineClient
    from engine.events import Timings
    from engine.messages import ChatChunk

_SAVE_EVERY_S = 0.5
_READ_WINDOW_S = 0.01

Show = Callable[[str], Awaitable[None]]
Save = Callable[[str], None]


class Answer:
    """`text` is what the model wrote, untouched; `show` gets each new piece, `save` all so far.

    `asked`: the mode that was asked for, "" for the engine's own; `mode`: the one it ran in, told at its end.
    `begun_lossy`: it goes on what a lossy mode began.
    """

    def __init__(
        self, show: Show, save: Save, pace: Pace, asked: str = "", *, begun_lossy: bool = False
    ) -> None:
        self.request_id = uuid.uuid4().hex
        self.text = ""
        self.timings: Timings | None = None
        self.prefill = Prefill()
        self.looks = Looks()
        self.finish = ""
        self.asked, self.begun_lossy = asked, begun_lossy
        self.mode: str | None = None
        self.exact: bool | None = None
        self._show = show
        self._save = save
        self._pace = pace
        self._is_thinking = False
        self._shown = 0
        self._saved_at = time.monotonic()
        self._reading = asyncio.Event()

    async def run(
        self, client: EngineClient, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]
    ) -> None:
        """Until the engine says it is done. Raises the S2Error the engine answers with."""
        drawing = asyncio.create_task(self._draw_at_pace())
        try:
            async with closing(client.chat(messages, options=options, request_id=self.request_id)) as chunks:
                async for chunk in chunks:
                    self._take(chunk)
                    if not chunk.finish:
                        # Pieces that arrive between two updates are read together, in one wake-up.
                        await self._reading.wait()
        finally:
            drawing.cancel()
            await asyncio.gather(drawing, return_exceptions=True)
            await self._draw()

    def _take(self, chunk: ChatChunk) -> None:
        self.text += self._told(chunk)
        self.prefill.take(chunk.progress)
        self.looks.take(chunk.look)
        self.timings = chunk.timings or self.timings
        self.finish = chunk.finish or self.finish
        self.mode = chunk.mode or self.mode
        self.exact = self.exact if chunk.exact is None else chunk.exact

    def _told(self, chunk: ChatChunk) -> str:
        """What `chunk` adds to the text; thoughts that come apart stand in it as our engine writes them."""
        text = chunk.text
        if self._is_thinking and text.strip():
            self._is_thinking = False
            return f"{chunk.reasoning}\n{CLOSE}\n\n{text}"
        if chunk.reasoning and not self.text.strip():
            self._is_thinking = True
            return f"{OPEN}\n{chunk.reasoning}{text}"
        return (chunk.reasoning if self._is_thinking else "") + text

    async def _draw_at_pace(self) -> None:
        while True:
            self._reading.set()
            await asyncio.sleep(_READ_WINDOW_S)
            self._reading.clear()
            await self._draw()
            await asyncio.sleep(self._pace.interval_s)

    async def _draw(self) -> None:
        piece = self.text[self._shown :]
        if piece:
            self._shown = len(self.text)
            started = time.process_time()
            await self._show(piece)
            self._pace.measured(time.process_time() - started)
        now = time.monotonic()
        if piece and now - self._saved_at >= _SAVE_EVERY_S:
            self._saved_at = now
            self._save(self.text)
