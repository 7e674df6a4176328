"""The way from the decode thread to the event loop."""

from __future__ import annotations

import asyncio
import threading

from engine.errors import S2Error
from engine.events import Done, Prefill, Timings, Tokens
from engine.job import Cancel, Item, Mailbox

LONG_S = 60.0
END = Done("eos", "", Timings())


async def test_items_arrive_in_order_and_none_is_lost() -> None:
    mailbox = Mailbox()

    def produce() -> None:
        for number in range(20_000):
            mailbox.put(Tokens(str(number), (number,), Timings()))
        mailbox.put(END, last=True)

    thread = threading.Thread(target=produce)
    thread.start()
    items: list[Item] = []
    while not items or items[-1] is not END:
        items += await mailbox.get(LONG_S)
    thread.join()
    assert [item.ids[0] for item in items if isinstance(item, Tokens)] == list(range(20_000))


async def test_get_gives_up_after_its_time() -> None:
    mailbox = Mailbox()
    assert await mailbox.get(0.01) == []
    mailbox.put(Prefill(1, 2, 0))
    assert await mailbox.get(LONG_S) == [Prefill(1, 2, 0)]


async def test_only_the_last_item_ends_a_pause() -> None:
    mailbox = Mailbox()
    pause = asyncio.create_task(mailbox.pause(LONG_S))
    await asyncio.sleep(0)
    mailbox.put(Prefill(1, 2, 0))
    await asyncio.sleep(0.01)
    assert not pause.done()
    mailbox.put(END, last=True)
    await pause
    await mailbox.pause(LONG_S)  # nothing more will come
    mailbox.put(S2Error("too late"), last=True)
    assert await mailbox.get(LONG_S) == [Prefill(1, 2, 0), END]


class _Flag:
    def __init__(self) -> None:
        self.is_set = False

    def set(self) -> None:
        self.is_set = True


def test_a_cancel_reaches_the_native_flag_whichever_comes_first() -> None:
    for early in (True, False):
        cancel, flag = Cancel(), _Flag()
        if early:
            cancel.set()
        cancel.attach(flag)  # type: ignore[arg-type]
        if not early:
            cancel.set()
        assert flag.is_set
