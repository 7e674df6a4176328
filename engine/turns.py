"""Whose turn it is: requests wait in one lane for each client, and the lanes take turns."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Turns(Generic[T, U]):
    """A queue that no client can fill for the others. What is `urgent` goes before every lane.

    Safe to use from several threads.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._urgent: deque[U] = deque()
        self._lanes: OrderedDict[str, deque[T]] = OrderedDict()  # whose turn it is next stands first
        self._stopped = False

    def put(self, item: T, lane: str) -> None:
        with self._changed:
            self._lanes.setdefault(lane, deque()).append(item)
            self._changed.notify()

    def put_urgent(self, item: U) -> None:
        with self._changed:
            self._urgent.append(item)
            self._changed.notify()

    def stop(self) -> None:
        """`take` ends once nothing waits any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def take(self) -> T | U | None:
        """The next one, as soon as there is one; None after `stop`."""
        with self._changed:
            while not (self._urgent or self._lanes or self._stopped):
                self._changed.wait()
            if self._urgent:
                return self._urgent.popleft()
            if not self._lanes:
                return None
            lane, items = self._lanes.popitem(last=False)
            item = items.popleft()
            if items:
                self._lanes[lane] = items
            return item

    def remove(self, item: T) -> bool:
        """Takes `item` out of its lane; False when it waits no more."""
        with self._changed:
            for lane, items in self._lanes.items():
                if item in items:
                    items.remove(item)
                    if not items:
                        del self._lanes[lane]
                    return True
        return False

    def waiting(self) -> list[T]:
        """All that wait in lanes, in the order of their turns if nothing else comes."""
        with self._changed:
            lanes = [deque(items) for items in self._lanes.values()]
        order: list[T] = []
        while lanes:
            order += [items.popleft() for items in lanes]
            lanes = [items for items in lanes if items]
        return order
