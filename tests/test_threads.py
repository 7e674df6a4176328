"""The thread governor against scripted machines, and on this one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from engine.threads import (
    FIRST_RETRY_NS,
    LAST_RETRY_NS,
    PATIENCE,
    WINDOW_NS,
    ThreadGovernor,
    idle_ns,
    run_delay_ns,
)

PASS_NS = 10_000_000


@dataclass
class Machine:
    """`crowd` = how many of our threads wait for a core at any time, `spare` = how many cores idle."""

    crowd: float = 0.0
    spare: float = 0.0
    now: int = 1_000_000_000
    waited: int = 0
    idled: int = 0

    def clock(self) -> int:
        return self.now

    def delay(self) -> int | None:
        return self.waited

    def idle(self) -> int | None:
        return self.idled

    def run(self, governor: ThreadGovernor, seconds: float) -> None:
        end = self.now + int(seconds * 1e9)
        while self.now < end:
            governor.before_pass()
            self.now += PASS_NS
            self.waited += int(self.crowd * PASS_NS)
            self.idled += int(self.spare * PASS_NS)
            governor.after_pass()


def make(limit: int, machine: Machine) -> ThreadGovernor:
    return ThreadGovernor(limit, delay_ns=machine.delay, idle_ns=machine.idle, clock_ns=machine.clock)


def test_alone_it_keeps_every_thread() -> None:
    machine = Machine(crowd=0.04)
    governor = make(4, machine)
    machine.run(governor, 30)
    assert governor.threads == 4


def test_a_busy_neighbour_costs_one_thread_within_three_windows() -> None:
    machine = Machine(crowd=0.5)
    governor = make(2, machine)
    machine.run(governor, (PATIENCE + 1) * WINDOW_NS / 1e9)
    assert governor.threads == 1


def test_a_moment_of_crowding_costs_nothing() -> None:
    machine = Machine()
    governor = make(2, machine)
    for _ in range(20):
        machine.crowd = 0.5
        machine.run(governor, WINDOW_NS / 1e9)
        machine.crowd = 0.02
        machine.run(governor, 3 * WINDOW_NS / 1e9)
        assert governor.threads == 2


def test_a_crowd_costs_as_many_as_wait() -> None:
    machine = Machine(crowd=3.0)
    governor = make(8, machine)
    machine.run(governor, (PATIENCE + 0.5) * WINDOW_NS / 1e9)
    assert governor.threads == 5


def test_it_never_gives_up_the_last_thread() -> None:
    machine = Machine(crowd=5.0)
    governor = make(3, machine)
    machine.run(governor, 5)
    assert governor.threads == 1


def test_the_thread_comes_back_at_once_when_a_core_idles() -> None:
    machine = Machine(crowd=0.5)
    governor = make(2, machine)
    machine.run(governor, 20)
    assert governor.threads == 1
    machine.crowd, machine.spare = 0.0, 0.5  # the neighbour works half of the time
    machine.run(governor, 20)
    assert governor.threads == 1
    machine.spare = 0.97
    machine.run(governor, 3 * WINDOW_NS / 1e9)
    assert governor.threads == 2


def test_cores_that_only_look_idle_are_asked_for_more_and_more_rarely() -> None:
    machine = Machine()
    governor = make(2, machine)
    tries, before = [], 2
    for _ in range(3000):
        machine.crowd, machine.spare = (0.5, 0.0) if governor.threads == 2 else (0.0, 1.0)
        machine.run(governor, 0.1)
        if governor.threads > before:
            tries.append(machine.now)
        before = governor.threads
    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps == sorted(gaps)
    assert FIRST_RETRY_NS < gaps[0] < gaps[-1] < 2 * LAST_RETRY_NS


def test_waiting_between_requests_does_not_count() -> None:
    machine = Machine(crowd=0.0)
    governor = make(2, machine)
    machine.run(governor, 0.05)
    machine.now += 10_000_000_000
    machine.waited += 9_000_000_000
    machine.run(governor, 0.5)
    assert governor.threads == 2


def test_nobody_counts_so_nothing_changes(tmp_path: Path) -> None:
    assert run_delay_ns(tmp_path / "none") is None
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "schedstat").write_text("nonsense")
    assert run_delay_ns(tmp_path) is None
    assert idle_ns(tmp_path / "none") is None
    machine = Machine(crowd=2.0)
    for governor in (
        ThreadGovernor(2, delay_ns=lambda: None, idle_ns=machine.idle, clock_ns=machine.clock),
        ThreadGovernor(2, delay_ns=machine.delay, idle_ns=lambda: None, clock_ns=machine.clock),
    ):
        machine.run(governor, 5)
        assert governor.threads == 2


def test_a_number_that_was_asked_for_stays() -> None:
    machine = Machine(crowd=2.0)
    governor = ThreadGovernor(2, fixed=True, delay_ns=machine.delay, clock_ns=machine.clock)
    machine.run(governor, 5)
    assert governor.threads == 2


def test_the_kernel_counts_here() -> None:
    assert run_delay_ns() is not None
    before = idle_ns()
    assert before is not None
    assert before > 0
