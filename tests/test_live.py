"""What the machine does at this moment, from recorded machines whose counters move on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded import KIB, meminfo, orin_nano, write

from engine.machine.live import Live
from engine.machine.power import read_board_power, read_energy
from engine.machine.reading import Reading
from engine.machine.temperature import read_temperature
from engine.machine.throttling import brakes

GIB = 1 << 30
PAGE, TICKS = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def desktop(root: Path, *, at: int) -> Path:
    """A desktop `at` seconds after its recording began: two of its eight CPUs are the engine's."""
    device = root.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    return write(
        root,
        {
            "proc/meminfo": meminfo(32 * GIB, 20 * GIB),
            "proc/stat": f"cpu  {50 * at} {200 * at} 0 {450 * at} {100 * at} 0 0 0 7 0\ncpu0 1 2 3 4\n",
            "proc/7/statm": f"9999 {3 * GIB // PAGE} 1 1 0 1 0\n",
            "proc/7/stat": f"7 (s2 (chat) x) S 1 7 7 0 -1 0 0 0 0 0 {TICKS * at} {TICKS * at} 0 0 20 0 9\n",
            "proc/7/io": f"rchar: 1\nread_bytes: {300_000_000 * at}\nwrite_bytes: 0\n",
            "proc/self/mountinfo": f"29 1 {number} / / rw - ext4 /dev/nvme0n1p2 rw\n",
            f"sys/dev/block/{number}/dev": number,
            "proc/diskstats": f" 259 0 {Path(number).name} 5 0 {1_000_000 * at} 3 0 0 0 0 0 0 0\n",
            "sys/class/hwmon/hwmon0/name": "coretemp\n",
            "sys/class/hwmon/hwmon0/temp1_input": "61000\n",
            "sys/class/hwmon/hwmon0/temp1_label": "Package id 0\n",
            "sys/class/hwmon/hwmon1/name": "nvme\n",
            "sys/class/hwmon/hwmon1/temp1_input": "48850\n",
            "sys/class/powercap/intel-rapl:0/name": "package-0\n",
            "sys/class/powercap/intel-rapl:0/energy_uj": f"{(60_000_000 * at) % 100_000_000}\n",
            "sys/class/powercap/intel-rapl:0/max_energy_range_uj": "100000000\n",
            "sys/class/powercap/intel-rapl:0:0/name": "core\n",
            "sys/class/powercap/intel-rapl:0:0/energy_uj": "1\n",
            "sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": f"{at // 3}\n",
            "sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count": "0\n",
        },
    )


def values(found: dict[str, Reading]) -> dict[str, object]:
    return {name: reading.value for name, reading in found.items()}


def test_two_looks_make_rates(tmp_path: Path, clock: Clock) -> None:
    live = Live(desktop(tmp_path, at=1), feeds={}, clock=clock)
    first = live.look(7, tmp_path)
    assert values(first)["engine.memory"] == 3 * GIB
    for name in ("cpu.load", "engine.cpus", "engine.read", "disk.read", "power"):
        assert (first[name].value, first[name].error) == (None, "the first look: a rate needs two")
    desktop(tmp_path, at=2)
    clock.now += 1
    found = live.look(7, tmp_path)
    assert values(found) | {"disk.read": None} == {
        "memory.total": 32 * GIB,
        "memory.used": 12 * GIB,
        "memory.free": 20 * GIB,
        "engine.memory": 3 * GIB,
        "engine.cpus": 2.0,
        "engine.read": 300_000_000,
        "cpu.load": pytest.approx(31.25),
        "disk.read": None,
        "gpu.load": None,
        "gpu.used": None,
        "gpu.total": None,
        "gpu.power": None,
        "gpu.temperature": None,
        "power": pytest.approx(60.0),
        "temperature": 61.0,
        "throttled": "",
    }
    assert found["disk.read"].value == 512_000_000
    assert found["temperature"].source == "coretemp Package id 0"
    assert found["power"].source.endswith("processor")
    assert all(reading.known or reading.error for reading in found.values()), "n/a always says why"


def test_heat_is_told_for_a_while_after_it_was_counted(tmp_path: Path, clock: Clock) -> None:
    live = Live(desktop(tmp_path, at=1), feeds={}, clock=clock)
    live.look()
    desktop(tmp_path, at=3)
    clock.now += 2
    assert live.look()["throttled"].value == "heat of the processor"
    clock.now += 4
    assert live.look()["throttled"].value == "heat of the processor"
    clock.now += 4
    assert live.look()["throttled"].value == ""


def test_a_counter_that_begins_again(tmp_path: Path, clock: Clock) -> None:
    """That of energy does so at a number it names; those of an engine that is another now do not."""
    live = Live(desktop(tmp_path, at=9), feeds={}, clock=clock)
    live.look(7)
    desktop(tmp_path, at=10)
    clock.now += 1
    assert live.look(7)["power"].value == pytest.approx(60.0)
    desktop(tmp_path, at=1)
    clock.now += 1
    found = live.look(7)
    assert not found["engine.read"].known
    assert not found["cpu.load"].known
    desktop(tmp_path, at=2)
    clock.now += 1
    assert live.look(7)["engine.read"].value == 300_000_000


def test_an_engine_that_ends_and_another_that_comes(tmp_path: Path, clock: Clock) -> None:
    live = Live(desktop(tmp_path, at=1), feeds={}, clock=clock)
    live.look(7)
    (tmp_path / "proc/7").rename(tmp_path / "proc/8")
    clock.now += 1
    gone = live.look(7)
    assert (gone["engine.memory"].value, gone["engine.memory"].error) == (None, "not there")
    assert gone["memory.used"].known
    assert live.look(None)["engine.memory"].error == "no engine runs"
    assert live.look(8)["engine.memory"].value == 3 * GIB


def test_the_cgroup_that_counts_is_that_of_the_engine(tmp_path: Path, clock: Clock) -> None:
    group = "sys/fs/cgroup/engine"
    root = write(
        desktop(tmp_path, at=1),
        {
            "proc/self/cgroup": "0::/\n",
            "proc/7/cgroup": "0::/engine\n",
            f"{group}/memory.max": f"{4 * GIB}\n",
            f"{group}/memory.current": f"{3 * GIB}\n",
            f"{group}/memory.stat": f"inactive_file {GIB}\n",
            f"{group}/cpu.stat": "usage_usec 9\nnr_throttled 1\nthrottled_usec 1000\n",
        },
    )
    live = Live(root, feeds={}, clock=clock)
    found = live.look(7)
    assert (found["memory.total"].value, found["memory.free"].value) == (4 * GIB, 2 * GIB)
    assert found["memory.free"].source == "the tightest cgroup"
    assert live.look(None)["memory.total"].value == 32 * GIB
    live.look(7)
    write(root, {f"{group}/cpu.stat": "throttled_usec 51000\n"})
    assert live.look(7)["throttled"].value == "its CPU quota"


def test_a_jetson_without_any_service(tmp_path: Path, clock: Clock) -> None:
    rails = "sys/class/hwmon/hwmon1"
    root = write(
        orin_nano(tmp_path),
        {
            f"{rails}/name": "ina3221\n",
            **{f"{rails}/in{n}_label": f"{rail}\n" for n, rail in enumerate(("VDD_IN", "VDD_SOC", "NC"), 1)},
            **{f"{rails}/in{n}_input": "5000\n" for n in (1, 2, 3)},
            **{f"{rails}/curr{n}_input": f"{current}\n" for n, current in ((1, 1368), (2, 300), (3, 9))},
            "sys/class/hwmon/hwmon3/oc3_event_cnt": "7\n",
        },
    )
    live = Live(root, feeds={}, clock=clock)
    found = live.look()
    assert (found["power"].value, found["power"].source) == (6.84, "/sys/class/hwmon: VDD_IN")
    assert (found["temperature"].value, found["temperature"].source) == (51.25, "cpu-thermal")
    assert found["gpu.load"].value == 43.7
    assert found["throttled"].value == ""
    write(root, {"sys/class/hwmon/hwmon3/oc3_event_cnt": "8\n"})
    write(root, {"sys/class/thermal/thermal_zone0/temp": "99500\n"})
    assert live.look()["throttled"].value == "heat at cpu-thermal, too much current"


def test_rails_without_one_that_feeds_all(tmp_path: Path) -> None:
    chip = "sys/class/hwmon/hwmon0"
    files = {f"{chip}/name": "ina226\n", f"{chip}/label": "CPU\n", f"{chip}/power1_input": "2500000\n"}
    files |= {f"{chip[:-1]}1/name": "ina219\n", f"{chip[:-1]}1/power1_input": "500000\n"}
    reading = read_board_power(write(tmp_path, files))
    assert (reading.value, reading.source) == (3.0, "/sys/class/hwmon: CPU, rail 1")


def test_energy_that_only_root_may_see(tmp_path: Path) -> None:
    desktop(tmp_path, at=1)
    counter = tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj"
    counter.unlink()
    counter.symlink_to("/proc/1/mem" if os.geteuid() else counter.parent)  # neither can be read
    reading = read_energy(tmp_path)
    assert not reading.known
    assert reading.error
    assert Live(tmp_path, feeds={}).look()["power"].error == reading.error


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n"}, ["too low a voltage", "heat"]),
        ({"sys/devices/platform/soc/soc:firmware/get_throttled": "?\n"}, []),
        (
            {
                "sys/class/thermal/cooling_device0/type": "pwm-fan\n",
                "sys/class/thermal/cooling_device0/cur_state": "3\n",
            },
            [],
        ),
        (
            {
                "sys/class/thermal/cooling_device1/type": "thermal-cpufreq-0\n",
                "sys/class/thermal/cooling_device1/cur_state": "2\n",
            },
            ["a lower clock for heat"],
        ),
    ],
)
def test_brakes(tmp_path: Path, files: dict[str, str], words: list[str]) -> None:
    assert brakes(write(tmp_path, files)) == words


@pytest.mark.parametrize("content", ["", "\x00\xff", "nothing anybody expects\n" * 3, "-1 -1 -1\n"])
def test_files_nobody_expects(tmp_path: Path, clock: Clock, content: str) -> None:
    desktop(tmp_path, at=1)
    live = Live(tmp_path, feeds={}, clock=clock)
    live.look(7, tmp_path)
    for file in [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "meminfo"]:
        file.write_text(content)
    clock.now += 1
    found = live.look(7, tmp_path)
    assert found["memory.total"].value == 32 * GIB
    assert all(reading.known or reading.error for reading in found.values())


def test_a_machine_that_says_nothing(tmp_path: Path, clock: Clock) -> None:
    found = Live(tmp_path, feeds={}, clock=clock).look(7, tmp_path / "model.gguf")
    assert found["memory.total"].value > KIB, "psutil's"
    others = {name: reading for name, reading in found.items() if not name.startswith("memory")}
    assert not any(reading.known for reading in others.values())
    assert all(reading.error for reading in others.values())
    assert found["throttled"].error == "nothing here would tell"
    assert read_temperature(tmp_path).error == "no sensor"
