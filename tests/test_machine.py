"""What the probes read from recorded machines, and that nothing they meet stops them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from recorded import KIB, cpus, meminfo, orin_nano, write

from engine.budget import reserve_bytes
from engine.device import completed, detect
from engine.machine.inventory import merged, quick
from engine.machine.reading import Reading
from engine.machine.speeds import READ_BYTES, copy_speed, measure, read_speed, remembered
from engine.machine.surroundings import container, wsl
from engine.placement import gpu_room

GIB = 1 << 30


def test_a_jetson_without_any_service(tmp_path: Path) -> None:
    root = orin_nano(tmp_path)
    found = quick(root, {})
    values = {name: reading.value for name, reading in found.items()}
    assert values["jetson.model"] == "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super"
    assert values["jetson.module"] == "Orin Nano 8 GB"
    assert (values["jetson.l4t"], values["jetson.jetpack"]) == ("36.4.3", "6")
    assert values["jetson.power_mode"] == "15W"
    assert values["jetson.gpu_load"] == 43.7
    assert (values["jetson.gpu_clock_mhz"], values["jetson.gpu_clock_max_mhz"]) == (306, 624)
    assert values["jetson.temperature"] == 51.25, "a zone that is off does not count"
    assert values["jetson.hot"] is None
    assert values["jetson.throttled"] == 7
    assert values["cpu.model"] == "Cortex-A78AE"
    assert values["memory.swap_kind"] == ["zram"]
    assert all(reading.source for reading in found.values())
    assert "1420000000042" not in repr(found), "serial numbers stay unread"


def test_one_memory_of_a_jetson_is_counted_once(tmp_path: Path) -> None:
    """NVML calls its GPU "Orin (nvgpu)" and has no figure, or nonsense, for its memory."""
    root = orin_nano(tmp_path)
    nonsense = {"gpu.0.name": Reading("Orin (nvgpu)"), "gpu.0.shared": Reading(True)}
    nonsense |= {"gpu.0.memory": Reading(8 * GIB), "gpu.0.memory_free": Reading(7 * GIB)}
    device = completed(detect(root), merged(quick(root, {}), nonsense))
    assert (device.gpu_memory_bytes, device.gpu_free_bytes) == (0, 0)
    assert (device.memory_bytes, device.available_bytes) == (7_802_048 * KIB, 5_242_880 * KIB)
    assert device.jetson
    assert device.cores == 6
    assert device.gpu_speed == device.memory_speed == 102_400_000_000
    assert device.slowed == "power mode 15W"
    reserve = 768 * 1024 * KIB
    assert gpu_room(replace(device, gpu=True)) == device.available_bytes - reserve, "and some of it left free"
    assert reserve_bytes(device) == reserve


def test_heat_and_full_power(tmp_path: Path) -> None:
    root = orin_nano(tmp_path)
    (root / "var/lib/nvpmodel/status").write_text("pmode:0002\n")
    assert completed(detect(root), quick(root, {})).slowed == ""
    (root / "sys/class/thermal/thermal_zone0/temp").write_text("99500\n")
    assert completed(detect(root), quick(root, {})).slowed == "heat at cpu-thermal"


@pytest.mark.parametrize("name", ["etc/nvpmodel.conf", "var/lib/nvpmodel/status", "etc/nv_tegra_release"])
@pytest.mark.parametrize("content", [None, "", "\x00\xff", "nothing anybody expects\n" * 3])
def test_a_jetson_that_lacks_something(tmp_path: Path, name: str, content: str | None) -> None:
    root = orin_nano(tmp_path)
    if content is None:
        (root / name).unlink()
    else:
        (root / name).write_text(content)
    found = quick(root, {})
    assert found["jetson.model"].known
    assert found["jetson.gpu_load"].known


def test_a_desktop_of_hyper_threads(tmp_path: Path) -> None:
    root = write(tmp_path, {**cpus(16, threads=2), "proc/meminfo": meminfo(32 * GIB, 24 * GIB)})
    assert detect(root).cores == 8
    (root / "proc/self/status").write_text("Cpus_allowed_list:\t0-3,8\n")
    assert detect(root).cores == 3, "two whole cores and one thread of a third"
    assert quick(root, {})["cpu.threads"].value == 5


def test_a_container_with_two_cores_and_four_gigabytes(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            **cpus(32),
            ".dockerenv": "",
            "proc/meminfo": meminfo(128 * GIB, 100 * GIB),
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{3 * GIB}\n",
            "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
            "sys/fs/cgroup/memory.pressure": "some avg10=3.50 avg60=0 avg300=0 total=1\n",
            "sys/fs/cgroup/cpu.max": "200000 100000\n",
        },
    )
    device = completed(detect(root), quick(root, {}))
    assert (device.cores, device.memory_bytes, device.available_bytes) == (2, 4 * GIB, 3 * GIB)
    assert device.limited
    found = quick(root, {})
    assert (found["memory.limit"].value, found["memory.limit_room"].value) == (4 * GIB, 3 * GIB)
    assert found["memory.limit_pressure"].value == 3.5
    assert found["cpu.quota"].value == 2.0
    assert found["system.container"].value == "docker"


def test_wsl_ssh_and_other_containers(tmp_path: Path) -> None:
    for kernel, name in (
        ("5.15.167.4-microsoft-standard-WSL2", "WSL2"),
        ("4.4.0-19041-Microsoft", "WSL1"),
        ("6.8.0-49-generic", None),
    ):
        assert wsl(write(tmp_path, {"proc/sys/kernel/osrelease": kernel + "\n"})) == name
    assert container(tmp_path, {"container": "lxc"}) == "lxc"
    assert container(tmp_path, {}) is None
    assert container(write(tmp_path, {"proc/1/cgroup": "0::/kubepods/pod1\n"}), {}) == "kubepods"
    ssh = quick(tmp_path, {"SSH_CONNECTION": "10.0.0.7 5555 10.0.0.1 22"})["system.ssh"]
    assert ssh.value == "yes"


def test_a_machine_that_says_nothing(tmp_path: Path) -> None:
    found = quick(tmp_path, {})
    assert not found["cpu.model"].known
    assert found["cpu.model"].error == "not there"
    assert found["memory.total"].known, "psutil's"
    assert detect(tmp_path).cores >= 1


def test_later_answers_win_but_errors_never_do() -> None:
    old, new, error = Reading(1, "a"), Reading(2, "b"), Reading(None, "b", "no")
    assert merged({"x": old}, {"x": new}) == {"x": new}
    assert merged({"x": old}, {"x": error, "y": error}) == {"x": old, "y": error}


def test_detection_takes_no_time() -> None:
    """In a process of its own, after its imports; the best of five counts on a machine that others use."""
    code = (
        "import json, time\n"
        "from pathlib import Path\n"
        "from engine.machine.inventory import this_machine\n"
        "times = []\n"
        "for _ in range(5):\n"
        "    started = time.perf_counter()\n"
        "    this_machine(Path('/'))\n"
        "    times.append(time.perf_counter() - started)\n"
        "print(json.dumps(times))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert min(json.loads(done.stdout)) < 0.2


def test_the_disk_is_measured_once_and_remembered(tmp_path: Path) -> None:
    file, cache = tmp_path / "model.gguf", tmp_path / "cache" / "speeds.json"
    file.write_bytes(os.urandom(READ_BYTES) * 34)
    root = Path("/")
    before = remembered(root, file, cache)["disk.read_speed"]
    assert (before.known, before.error) == (False, "not measured yet")
    first = measure(root, file, cache, disk_only=True)["disk.read_speed"]
    if not first.known:  # a file system that cannot be read past the page cache says so
        assert first.error
        assert not cache.exists()
        return
    assert remembered(root, file, cache)["disk.read_speed"].value == first.value
    assert json.loads(cache.read_text())
    cache.write_text(json.dumps(dict.fromkeys(json.loads(cache.read_text()), 1 << 60)))
    assert measure(root, file, cache, disk_only=True)["disk.read_speed"].value == 1 << 60, (
        "not measured again"
    )
    cache.write_text("{ broken")
    assert measure(root, file, cache, disk_only=True)["disk.read_speed"].known


def test_a_file_too_small_to_measure_with(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.write_bytes(b"1234")
    with pytest.raises(OSError, match="too small"):
        read_speed(small)


def test_memory_has_a_speed() -> None:
    assert copy_speed(1) > 100_000_000
