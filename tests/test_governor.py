"""What memory the experts keep while nobody asks, while memory is short, and on request."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from engine.budget import parse_budget
from engine.errors import BadRequest, EngineUnavailable
from engine.governor import GROW_EVERY_S, IDLE_S, LONGEST_CALM_S, MemoryGovernor
from engine.strain import Strain, pressure_of, read_strain, spare

MIB = 1 << 20
ALL, LEAST, GIVEN, OTHER, IDLE = 4000 * MIB, 100 * MIB, 1600 * MIB, 400 * MIB, 500 * MIB
WELL = Strain(free=6000 * MIB, memory=8000 * MIB)
FULL = replace(WELL, free=100 * MIB)
SLOW = replace(WELL, free=700 * MIB, waiting=30.0)


class Slots:
    bytes_min, bytes_all = LEAST, ALL

    def __init__(self) -> None:
        self.sizes = [GIVEN]
        self.warmed = 0

    def resize(self, n_bytes: int, /) -> int:
        assert LEAST <= n_bytes <= ALL
        self.sizes.append(n_bytes)
        return n_bytes

    def warm(self) -> None:
        self.warmed += 1


class Machine:
    """A governor, its slots and a clock; `strain` is what the machine shows."""

    def __init__(self, budget: int = GIVEN + OTHER, given: int = GIVEN) -> None:
        self.now, self.strain, self.slots = 0.0, WELL, Slots()
        self.slots.sizes = [given]
        self.governor = MemoryGovernor(
            self.slots,
            budget_bytes=budget,
            slot_bytes=given,
            other_bytes=OTHER,
            idle_bytes=IDLE,
            model_bytes=ALL + OTHER,
            read=lambda: self.strain,
            clock=lambda: self.now,
        )

    @property
    def size(self) -> int:
        return self.slots.sizes[-1]

    def run(self, seconds: float, *, busy: bool = True) -> list[str]:
        """Looks once a second; what was said."""
        said = []
        for _ in range(round(seconds)):
            self.now += 1.0
            said.append(self.governor.tick(busy=busy))
        return [text for text in said if text]


def test_nothing_happens_while_all_is_well() -> None:
    machine = Machine()
    assert machine.run(2 * IDLE_S) == []
    assert machine.slots.sizes == [GIVEN]


def test_after_ten_idle_minutes_a_small_share_stays_until_somebody_asks() -> None:
    machine = Machine()
    assert machine.run(IDLE_S - 1, busy=False) == []
    (said,) = machine.run(100, busy=False)
    assert said == "experts take 500 MiB of 3.9 GiB: nobody asked anything for 10 minutes"
    assert machine.size == IDLE
    assert "1.6 GiB of 3.9 GiB: somebody asks again" in machine.governor.wake()
    assert (machine.size, machine.slots.warmed) == (GIVEN, 1)
    assert machine.governor.wake() == ""
    assert machine.run(IDLE_S - 1, busy=False) == []
    assert machine.run(1, busy=False) != []


def test_what_was_given_back_waits_for_the_request_not_for_a_look() -> None:
    machine = Machine()
    machine.run(IDLE_S + 1, busy=False)
    machine.run(10, busy=True)
    assert machine.size == IDLE
    machine.governor.wake()
    assert machine.size == GIVEN


def test_a_budget_asked_for_in_a_rest_ends_it() -> None:
    machine = Machine()
    machine.run(IDLE_S + 1, busy=False)
    machine.governor.set_budget(parse_budget("1G"))
    assert machine.size == 1024 * MIB - OTHER
    assert machine.run(IDLE_S - 2, busy=False) == []
    assert machine.run(2, busy=False) != []


def test_work_begins_the_idle_time_anew() -> None:
    machine = Machine()
    machine.run(IDLE_S - 2, busy=False)
    machine.run(1, busy=True)
    assert machine.run(IDLE_S - 1, busy=False) == []


def test_few_slots_are_not_given_back_for_idleness() -> None:
    machine = Machine(budget=OTHER + IDLE, given=IDLE)
    assert machine.run(2 * IDLE_S, busy=False) == []


def test_what_others_took_meanwhile_comes_back_later() -> None:
    machine = Machine()
    machine.run(IDLE_S + 1, busy=False)
    machine.strain = replace(WELL, free=480 * MIB + 200 * MIB)  # twice the margin, and 200 MiB
    machine.governor.wake()
    assert machine.size == IDLE + 200 * MIB
    machine.strain = WELL
    assert machine.run(60)[-1].startswith("experts take 1.6 GiB")
    assert machine.size == GIVEN


def test_memory_that_ends_is_given_back_in_steps_down_to_the_least() -> None:
    machine = Machine()
    machine.strain = FULL
    assert machine.run(1) == [], "one look may be a program that is just starting"
    (first,) = machine.run(1)
    assert first.endswith(": hardly any memory is free")
    assert machine.size == GIVEN * 3 // 4
    machine.run(4)
    assert machine.size == GIVEN * 3 // 4, "the step needs time to show"
    machine.run(120)
    assert machine.size == LEAST
    assert sorted(machine.slots.sizes, reverse=True) == machine.slots.sizes
    assert machine.run(60) == []


def test_programs_that_are_only_slow_do_not_take_more_than_half() -> None:
    machine = Machine()
    machine.strain = SLOW
    assert all("wait for memory" in text for text in machine.run(300))
    assert machine.size == GIVEN // 2


def test_it_grows_back_slowly_once_there_has_been_enough_for_a_while() -> None:
    machine = Machine()
    machine.strain = FULL
    machine.run(8)
    low = machine.size
    assert low < GIVEN
    machine.strain = WELL
    assert machine.run(59) == []
    assert machine.size == low
    started, said = machine.now, list[str]()
    while machine.size < GIVEN:
        said += machine.run(1)
    assert said == ["experts take 1.6 GiB of 3.9 GiB: there is enough memory again"]
    assert machine.now - started > 2 * GROW_EVERY_S, "not all steps at once"
    up = machine.slots.sizes[machine.slots.sizes.index(low) :]
    assert len(up) > 3
    assert max(b - a for a, b in itertools.pairwise(up)) <= GIVEN // 8


def test_it_does_not_grow_into_the_next_shortage() -> None:
    machine = Machine()
    machine.strain = FULL
    machine.run(8)
    low = machine.size
    machine.strain = replace(WELL, free=480 * MIB + 100 * MIB)  # less than a step above the margin
    machine.run(1000)
    assert machine.size == low


def test_what_is_lost_again_at_once_is_waited_for_longer_and_longer() -> None:
    machine = Machine()
    waits = []
    for _ in range(7):
        machine.strain = FULL
        while not machine.run(1):
            pass
        machine.strain, started, low = WELL, machine.now, machine.size
        while machine.size == low:
            machine.run(1)
        waits.append(machine.now - started)
    assert waits == sorted(waits)
    assert 55 <= waits[0] < 70
    assert waits[-1] > 500
    assert max(waits) <= LONGEST_CALM_S + 1


def test_another_budget_on_request() -> None:
    machine = Machine()
    said = machine.governor.set_budget(parse_budget("1G"))
    assert said == "budget: 1.0 GiB for the engine; experts take 624 MiB of 3.9 GiB"
    assert (machine.size, machine.governor.budget_bytes) == (1024 * MIB - OTHER, 1 << 30)
    machine.governor.set_budget(parse_budget("50%"))
    assert machine.size == (ALL + OTHER) // 2 - OTHER
    machine.governor.set_budget(parse_budget("100G"))
    assert machine.size == ALL
    with pytest.raises(
        BadRequest, match="a budget of 499 MiB is too small: this model needs 500 MiB"
    ) as caught:
        machine.governor.set_budget(parse_budget("499M"))
    assert caught.value.hint == "500M or more"
    assert machine.size == ALL
    machine.governor.set_budget(parse_budget("500M"))
    assert machine.size == LEAST
    machine.run(300)
    assert machine.size == LEAST, "what was asked for stays"


def test_no_limit_takes_what_the_machine_can_spare() -> None:
    machine = Machine()
    machine.strain = replace(WELL, free=1480 * MIB)
    assert machine.governor.set_budget(parse_budget("max")).startswith(
        "budget: no limit; experts take 2.5 GiB"
    )
    assert machine.size == GIVEN + 1000 * MIB
    machine.strain = replace(WELL, free=8000 * MIB)
    machine.governor.set_budget(parse_budget("max"))
    assert machine.size == ALL


def test_a_budget_asked_for_in_a_shortage_is_taken_and_shrinks_again() -> None:
    machine = Machine()
    machine.strain = FULL
    machine.run(30)
    machine.governor.set_budget(parse_budget("2G"))
    assert machine.size == 2048 * MIB - OTHER
    machine.run(10)
    assert machine.size < 2048 * MIB - OTHER


def test_after_the_model_is_gone_nothing_is_touched() -> None:
    machine = Machine()
    machine.governor.close()
    machine.strain = FULL
    assert machine.run(60) == []
    assert machine.governor.wake() == ""
    with pytest.raises(EngineUnavailable):
        machine.governor.set_budget(parse_budget("1G"))
    assert machine.slots.sizes == [GIVEN]


def test_closing_waits_for_a_change_under_way() -> None:
    """The slots must not go while they are being resized."""
    machine = Machine()
    inside, leave, closed = threading.Event(), threading.Event(), threading.Event()

    def slow(n_bytes: int, /) -> int:
        inside.set()
        assert leave.wait(10)
        assert not closed.is_set()
        return n_bytes

    machine.slots.resize = slow  # type: ignore[method-assign]
    changing = threading.Thread(target=machine.governor.set_budget, args=(parse_budget("1G"),))
    changing.start()
    assert inside.wait(10)
    closing = threading.Thread(target=lambda: (machine.governor.close(), closed.set()))
    closing.start()
    assert not closed.wait(0.1)
    leave.set()
    changing.join(10)
    closing.join(10)
    assert closed.is_set()


# --- signs


@pytest.mark.parametrize(
    ("strain", "reason", "hard"),
    [
        (FULL, "hardly any memory", True),
        (replace(WELL, room=5 * MIB, limit=1000 * MIB), "group of the engine is full", True),
        (SLOW, "other programs wait", False),
        (replace(WELL, group_waiting=12.0), "group waits", False),
        (replace(WELL, faults=500), "read back from disk", False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_counts_as_pressure(strain: Strain, reason: str, hard: bool) -> None:
    pressure = pressure_of(strain, WELL, 1.0)
    assert pressure is not None
    assert reason in pressure.reason
    assert pressure.hard == hard


@pytest.mark.parametrize(
    "strain",
    [
        WELL,
        replace(WELL, waiting=90.0),  # much is free: what they wait for is not memory of ours
        replace(SLOW, waiting=3.0),
        replace(WELL, room=20 * MIB, limit=1000 * MIB),  # a group made for this budget and 2 % more
        replace(WELL, faults=10),
    ],
    ids=str,
)
def test_what_does_not(strain: Strain) -> None:
    assert pressure_of(strain, WELL, 1.0) is None


def test_the_first_look_knows_no_rate_of_faults() -> None:
    assert pressure_of(replace(WELL, faults=10**6), None, 0.0) is None


def test_what_can_be_spared_stays_clear_of_the_next_pressure() -> None:
    for free in range(0, 1000 * MIB, 10 * MIB):
        strain = replace(WELL, free=free)
        if spare(strain):
            assert pressure_of(replace(strain, free=free - spare(strain)), None, 1.0) is None
    assert spare(replace(WELL, room=100 * MIB, limit=1000 * MIB)) == 85 * MIB


def test_reading_a_machine(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/app",
        "proc/pressure/memory": "some avg10=12.50 avg60=0 avg300=0 total=1\nfull avg10=99.0 avg60=0 total=1",
        "sys/fs/cgroup/app/memory.pressure": "some avg10=3.25 avg60=1 avg300=0 total=9",
        "sys/fs/cgroup/app/memory.max": str(1000 * MIB),
        "sys/fs/cgroup/app/memory.current": str(990 * MIB),
        "sys/fs/cgroup/app/memory.stat": f"inactive_file {40 * MIB}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    strain = read_strain(tmp_path)
    assert (strain.waiting, strain.group_waiting) == (12.5, 3.25)
    assert (strain.room, strain.limit) == (50 * MIB, 1000 * MIB)
    assert 0 < strain.free <= strain.memory


@pytest.mark.parametrize("nonsense", ["", "some", "some avg10=much", "some avg60=1", "\x00"])
def test_a_kernel_that_does_not_count(tmp_path: Path, nonsense: str) -> None:
    path = tmp_path / "proc/pressure/memory"
    path.parent.mkdir(parents=True)
    path.write_text(nonsense)
    strain = read_strain(tmp_path)
    assert (strain.waiting, strain.room) == (None, None)
    assert pressure_of(replace(strain, free=strain.memory), strain, 1.0) is None


def test_what_something_else_needs_comes_from_the_experts_and_goes_back() -> None:
    machine = Machine()
    machine.governor.lend(300 * MIB)
    assert machine.size == machine.governor.slot_bytes == GIVEN - 300 * MIB
    machine.governor.set_budget(parse_budget(GIVEN + OTHER))
    assert machine.size == GIVEN - 300 * MIB, "it counts in every budget"
    machine.governor.lend(-300 * MIB)
    assert machine.size == GIVEN


def test_what_does_not_fit_is_not_lent() -> None:
    machine = Machine()
    with pytest.raises(BadRequest, match="has no room for") as caught:
        machine.governor.lend(GIVEN)
    assert caught.value.hint == f"{(OTHER + GIVEN + LEAST) // MIB}M or more"
    unlimited = Machine(budget=0)
    unlimited.strain = replace(WELL, free=600 * MIB)
    with pytest.raises(BadRequest, match="do not fit into the"):
        unlimited.governor.lend(300 * MIB)
    unlimited.governor.lend(50 * MIB)
    for one in (machine, unlimited):
        assert one.slots.sizes == [GIVEN]


def test_what_comes_back_waits_while_the_experts_rest() -> None:
    machine = Machine()
    machine.governor.lend(300 * MIB)
    machine.run(IDLE_S + 1, busy=False)
    machine.governor.lend(-300 * MIB)
    assert machine.size == IDLE
    machine.governor.wake()
    assert machine.size == GIVEN
