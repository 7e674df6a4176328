"""Cores and memory as recorded cgroup trees allow them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from mounts import forgotten

from engine.bench.cgroup import MemoryGroup, NotPermitted
from engine.device import Device, detect

MIB = 1 << 20
V2, V1 = "0::/app/worker", "5:memory:/app\n4:cpu,cpuacct:/app\n0::/"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path


def record(root: Path, cgroup: str, files: dict[str, str]) -> Device:
    """A machine whose /proc/self/cgroup and /sys/fs/cgroup read like this."""
    for name, content in {
        "proc/self/cgroup": cgroup,
        **{f"sys/fs/cgroup/{k}": v for k, v in files.items()},
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return detect(root)


def test_no_cgroup_is_the_whole_machine(root: Path) -> None:
    device = detect(root)
    assert device.memory_bytes == psutil.virtual_memory().total
    assert 1 <= device.cores <= (psutil.cpu_count() or 1)
    assert 0 < device.available_bytes <= device.memory_bytes


def test_this_machine() -> None:
    device = detect()
    assert device.cores >= 1
    assert 0 < device.available_bytes <= device.memory_bytes


def test_a_real_group_full_of_pages_of_a_file(tmp_path: Path) -> None:
    """As after a model was copied: what was read fills the limit, and all of it can be had."""
    limit, file = 192 * MIB, tmp_path / "file"
    with file.open("wb") as written:
        for _ in range(256):
            written.write(bytes(MIB))
    forgotten(file)
    code = (
        "import sys\n"
        "from engine.device import detect\n"
        "with open(sys.argv[1], 'rb') as file:\n"
        "    while file.read(1 << 20): pass\n"
        "device = detect()\n"
        "print(device.memory_bytes, device.available_bytes, device.limited)\n"
    )
    try:
        group = MemoryGroup.make(limit)
    except NotPermitted as error:
        pytest.skip(error.line())
    try:
        command = group.entering([sys.executable, "-c", code, str(file)])
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert (group.peak() or 0) > limit * 9 // 10, "the pages did not fill it"
    finally:
        group.close()
    memory, available, limited = done.stdout.split()
    assert (int(memory), limited) == (limit, "True")
    assert limit - 64 * MIB < int(available) < limit


def test_v2_limit_less_what_is_used(root: Path) -> None:
    device = record(
        root,
        V2,
        {
            "app/worker/memory.max": str(64 * MIB),
            "app/worker/memory.current": str(24 * MIB),
            "app/worker/memory.stat": "anon 1\nfile 2",
        },
    )
    assert (device.memory_bytes, device.available_bytes) == (64 * MIB, 40 * MIB)


def test_page_cache_is_free_memory(root: Path) -> None:
    """A limit of 64 MiB, filled with the pages of a file that was read twice."""
    stat = f"anon {4 * MIB}\ninactive_file {20 * MIB}\nactive_file {30 * MIB}\nslab_reclaimable {2 * MIB}"
    device = record(
        root,
        V2,
        {
            "app/worker/memory.max": str(64 * MIB),
            "app/worker/memory.current": str(64 * MIB),
            "app/worker/memory.stat": stat,
        },
    )
    assert device.available_bytes == 52 * MIB


def test_the_tightest_of_nested_limits_counts(root: Path) -> None:
    device = record(
        root,
        V2,
        {
            "app/worker/memory.max": "max",
            "app/worker/memory.current": str(5 * MIB),
            "app/memory.max": str(48 * MIB),
            "app/memory.current": str(40 * MIB),
            "memory.max": str(100 * MIB),
            "memory.current": str(50 * MIB),
        },
    )
    assert (device.memory_bytes, device.available_bytes) == (48 * MIB, 8 * MIB)


def test_high_throttles_like_a_limit(root: Path) -> None:
    device = record(
        root,
        V2,
        {
            "app/worker/memory.max": "max",
            "app/worker/memory.high": str(32 * MIB),
            "app/worker/memory.current": "0",
        },
    )
    assert device.memory_bytes == 32 * MIB


def test_max_is_no_limit(root: Path) -> None:
    device = record(
        root,
        V2,
        {
            "app/worker/memory.max": "max",
            "app/worker/memory.current": "1",
            "app/worker/cpu.max": "max 100000",
        },
    )
    assert device.memory_bytes == psutil.virtual_memory().total
    assert device.cores == detect(root / "nothing").cores


def test_more_used_than_allowed_is_nothing_left(root: Path) -> None:
    device = record(
        root, V2, {"app/worker/memory.max": str(8 * MIB), "app/worker/memory.current": str(9 * MIB)}
    )
    assert device.available_bytes == 0


def test_v1(root: Path) -> None:
    stat = f"inactive_file 1\ntotal_inactive_file {30 * MIB}\ntotal_active_file {10 * MIB}"
    device = record(
        root,
        V1,
        {
            "memory/app/memory.limit_in_bytes": str(64 * MIB),
            "memory/app/memory.usage_in_bytes": str(60 * MIB),
            "memory/app/memory.stat": stat,
            "memory/memory.limit_in_bytes": str((1 << 63) - 4096),
            "memory/memory.usage_in_bytes": str(900 * MIB),
            "cpu/app/cpu.cfs_quota_us": "100000",
            "cpu/app/cpu.cfs_period_us": "100000",
        },
    )
    assert (device.memory_bytes, device.available_bytes) == (64 * MIB, 44 * MIB)
    assert device.cores == 1


def test_v1_inside_a_container_sees_only_its_own_tree(root: Path) -> None:
    device = record(
        root,
        "5:memory:/docker/0123abcd",
        {"memory/memory.limit_in_bytes": str(16 * MIB), "memory/memory.usage_in_bytes": "0"},
    )
    assert device.memory_bytes == 16 * MIB


def test_v1_without_limits(root: Path) -> None:
    device = record(
        root,
        V1,
        {
            "memory/app/memory.limit_in_bytes": str((1 << 63) - 4096),
            "memory/app/memory.usage_in_bytes": "0",
            "cpu/app/cpu.cfs_quota_us": "-1",
            "cpu/app/cpu.cfs_period_us": "100000",
        },
    )
    assert device.memory_bytes == psutil.virtual_memory().total
    assert device.cores == detect(root / "nothing").cores


@pytest.mark.parametrize("quota", ["50000 100000", "100000 100000", "199999 100000"])
def test_a_quota_leaves_whole_cores_and_at_least_one(root: Path, quota: str) -> None:
    assert record(root, V2, {"app/cpu.max": quota}).cores == 1


def test_a_quota_above_the_machine_changes_nothing(root: Path) -> None:
    assert record(root, V2, {"cpu.max": "99900000 100000"}).cores == detect(root / "nothing").cores


def test_a_path_outside_the_own_tree(root: Path) -> None:
    """In a cgroup namespace the path may lead upwards."""
    device = record(root, "0::/../../other", {"memory.max": str(8 * MIB), "memory.current": "0"})
    assert device.memory_bytes == 8 * MIB


@pytest.mark.parametrize("nonsense", ["", "\n\n", "not a number", "\x00\xff", "-7"])
def test_nonsense_is_left_out(root: Path, nonsense: str) -> None:
    files = ["memory.max", "memory.current", "memory.stat", "memory.high", "cpu.max", "cpu.cfs_quota_us"]
    device = record(root, V2, dict.fromkeys(files, nonsense))
    assert device.cores >= 1
    assert device.memory_bytes >= 0
    (root / "proc/self/cgroup").write_text(nonsense)
    assert detect(root).memory_bytes == psutil.virtual_memory().total
