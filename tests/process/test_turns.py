"""The queue: lanes take turns, what is urgent comes first, and what is withdrawn is gone."""

from __future__ import annotations

import threading

from engine.turns import Turns


def filled(*items: str) -> Turns[str, str]:
    """Of each item the first letter is its lane."""
    turns: Turns[str, str] = Turns()
    for item in items:
        turns.put(item, item[0])
    return turns


def test_a_client_with_many_requests_does_not_hold_up_the_others() -> None:
    turns = filled("a1", "a2", "a3", "b1", "c1", "b2")
    order = ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert turns.waiting() == order
    assert [turns.take() for _ in order] == order


def test_the_order_told_is_the_order_kept() -> None:
    turns = filled("a1", "a2", "b1")
    assert turns.take() == "a1"
    turns.put("c1", "c")
    turns.put("a3", "a")
    told = turns.waiting()
    assert told == ["b1", "a2", "c1", "a3"]
    assert [turns.take() for _ in told] == told


def test_what_is_urgent_comes_first() -> None:
    turns = filled("a1")
    turns.put_urgent("load")
    assert [turns.take(), turns.take()] == ["load", "a1"]


def test_what_is_withdrawn_never_has_its_turn() -> None:
    turns = filled("a1", "b1", "a2")
    assert turns.remove("b1")
    assert not turns.remove("b1")
    assert turns.waiting() == ["a1", "a2"]


def test_who_waits_is_woken_and_stopping_lets_the_rest_go_first() -> None:
    turns: Turns[str, str] = Turns()
    taken: list[str | None] = []

    def work() -> None:
        while (item := turns.take()) is not None:
            taken.append(item)

    thread = threading.Thread(target=work)
    thread.start()
    turns.put("a1", "a")
    turns.put("a2", "a")
    turns.stop()
    thread.join(60)
    assert taken == ["a1", "a2"]
