"""When an engine without users leaves."""

from __future__ import annotations

import os

import pytest

from engine.lifetime import Lifetime


@pytest.mark.parametrize(
    ("idle_s", "used", "orphan", "over"),
    [
        (2.9, True, False, False),
        (3.1, True, False, True),
        (3.1, False, False, False),  # whoever started it is about to attach
        (9.9, False, False, False),
        (10.1, False, False, True),
        (3.1, False, True, True),  # whoever started it is dead
        (2.9, False, True, False),
    ],
)
def test_an_engine_leaves_some_seconds_after_its_last_use(
    idle_s: float, used: bool, orphan: bool, over: bool
) -> None:
    assert Lifetime().is_over(used=used, idle_s=idle_s, orphan=orphan, reachable=True) is over


def test_a_service_stays_as_long_as_it_can_be_reached() -> None:
    service = Lifetime(service=True)
    assert not service.is_over(used=True, idle_s=1e6, orphan=True, reachable=True)
    assert service.is_over(used=True, idle_s=3.1, orphan=False, reachable=False)


def test_an_orphan_has_another_parent_than_its_starter() -> None:
    assert not Lifetime(starter=os.getppid()).orphan
    assert not Lifetime(starter=0).orphan
    assert Lifetime(starter=1 << 22).orphan
