"""KV caches of conversations that made room for another: whoever comes back finds its own again.

There is one sequence, and so one conversation in the native cache. Without this, two windows that take turns
would read both conversations from their first token each time.
"""

from __future__ import annotations

import ctypes
import mmap
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.native import llama
from engine.timeline import Timeline

_LEAST_TOKENS = 64  # fewer are read again as fast as they are copied


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    timeline: Timeline
    data: mmap.mmap


class Shelf:
    """`room` says how many bytes may be kept in all, whenever it is asked."""

    def __init__(self, context: Any, room: Callable[[], int]) -> None:
        self._context = context
        self._room = room
        self._kept: OrderedDict[int, _Kept] = OrderedDict()  # the one that was used last stands last

    @property
    def size_bytes(self) -> int:
        """May be asked from any thread."""
        return sum(len(kept.data) for kept in tuple(self._kept.values()))

    def swap(self, current: Timeline, prompt: Sequence[int], *, exact: bool) -> Timeline | None:
        """Keeps what `prompt` would push out of the cache. The timeline of the cache that stands there now;
        None where nothing better than the current one was kept."""
        here = current.reusable(prompt, exact=exact)
        found = self._best(prompt, here, exact=exact)
        if found is not None:
            del self._kept[id(found)]
        if len(current) - here >= _LEAST_TOKENS:
            self._keep(current)
        if found is None:
            return None
        bindings = llama()
        bindings.llama_memory_clear(bindings.llama_get_memory(self._context), True)
        read = bindings.llama_state_seq_set_data(self._context, _bytes(found.data), len(found.data), 0)
        return found.timeline if read else Timeline()

    def clear(self) -> None:
        self._kept.clear()

    def _best(self, prompt: Sequence[int], here: int, *, exact: bool) -> _Kept | None:
        gains = [(kept.timeline.reusable(prompt, exact=exact) - here, kept) for kept in self._kept.values()]
        gain, kept = max(gains, key=lambda one: one[0], default=(0, None))
        return kept if gain >= _LEAST_TOKENS else None

    def _keep(self, timeline: Timeline) -> None:
        bindings = llama()
        size = int(bindings.llama_state_seq_get_size(self._context, 0))
        for key, old in list(self._kept.items()):  # what this conversation was a while ago
            if timeline.tokens[: len(old.timeline)] == old.timeline.tokens:
                del self._kept[key]
        room = self._room()
        while self._kept and self.size_bytes + size > room:
            self._kept.popitem(last=False)
        if self.size_bytes + size > room:
            return
        try:
            data = _memory(size)
        except (OSError, ValueError):
            return
        if bindings.llama_state_seq_get_data(self._context, _bytes(data), size, 0):
            kept = _Kept(timeline.copy(), data)
            self._kept[id(kept)] = kept


def _memory(size: int) -> mmap.mmap:
    """Pages of its own: the system has them back as soon as nobody holds it any more.

    malloc would keep them: once it has freed a mapping it serves what is no larger from its heaps, and these
    shrink only by what is free at their ends, when that is twice as much.
    """
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _bytes(data: mmap.mmap) -> Any:
    return ctypes.pointer(ctypes.c_uint8.from_buffer(data))
