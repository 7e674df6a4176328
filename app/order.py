"""Keys act in the order in which they were typed, also when they come faster than the interface takes them.

Textual hands text to the line that has the focus, which takes it when it is its turn, but acts on keys of the
program at once: of `abc` and Ctrl+Q in one read the second came first.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from app.prompt import Prompt
from engine.together import within

if TYPE_CHECKING:
    from textual.message_pump import MessagePump

    from app.chat import ChatApp

_MOST_S = 2.0  # rather a key out of order than none


async def settle(app: ChatApp, key: str) -> None:
    """Waits for what was typed before `key`, where that is still under way and `key` would overtake it."""
    focused = app.focused
    if focused is None:  # a list that was just opened has no line to type in before its first turn
        await _turn_of(app.screen)
        return
    if len(key) == 1:
        return
    active = app.active_bindings.get(key)
    if active is None or not active.binding.priority:
        return
    await _turn_of(focused)
    if focused is not app.prompt:
        await _turn_of(app.screen)  # it hears what has become of the text, and lists what fits
        return
    if app.prompt.text:
        app.drafts.typed()
    sent = app.prompt.take_enter()
    if sent is not None:
        await app.on_prompt_sent(Prompt.Sent(sent))


async def _turn_of(pump: MessagePump) -> None:
    """Waits until `pump` has dealt with all that it has been told so far."""
    done = asyncio.Event()
    if pump.call_later(done.set):
        with contextlib.suppress(TimeoutError):
            await within(_MOST_S, done.wait())
