"""The processor: its name, the cores this process may use, and the instructions that our kernels ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from engine.machine.cgroups import quotas
from engine.machine.reading import Reading, line_of, read, text_of

_CPUINFO = "proc/cpuinfo"
_FEATURES = (
    *("avx2", "f16c", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("amx_int8", "asimd", "asimddp", "i8mm", "sve", "sve2", "bf16"),
)
# An ARM processor tells its maker and part instead of a name.
_ARM = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x41", "0xd85"): "Cortex-X925",
    ("0x41", "0xd87"): "Cortex-A725",
}


def read_cpu(root: Path) -> dict[str, Reading]:
    return {
        "cpu.model": read(f"/{_CPUINFO}", lambda: _model(root)),
        "cpu.threads": read("/proc/self/status", lambda: len(allowed_cpus(root)) or None),
        "cpu.cores": read("/sys/devices/system/cpu", lambda: physical_cores(root)),
        "cpu.quota": read("cgroups", lambda: min(quotas(root), default=None)),
        "cpu.features": read(f"/{_CPUINFO}", lambda: features(root)),
    }


def usable_cores(root: Path) -> int:
    """Physical cores this process may run on, whole ones of a quota, at least one."""
    whole = [max(1, int(quota)) for quota in quotas(root)]
    return max(1, min([physical_cores(root), *whole]))


def physical_cores(root: Path) -> int:
    """Cores behind the CPUs this process may run on; hyper-threads add nothing to a memory-bound decode."""
    allowed = allowed_cpus(root)
    if not allowed:
        return max(1, len(os.sched_getaffinity(0)))
    topology = "sys/devices/system/cpu/cpu{}/topology/{}"
    cores = {
        line_of(root, topology.format(cpu, "core_cpus_list"))
        or line_of(root, topology.format(cpu, "thread_siblings_list"))
        or f"{cpu}"
        for cpu in allowed
    }
    return len(cores)


def allowed_cpus(root: Path) -> list[int]:
    """Numbers of the CPUs this process may run on; empty where the kernel does not say."""
    for line in line_blocks(root, "proc/self/status"):
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return list(_ranges(value.strip()))
    return []


def features(root: Path) -> list[str]:
    """Those that matter to the kernels of this program and of llama.cpp."""
    have = all_features(root)
    return [feature for feature in _FEATURES if feature in have]


def all_features(root: Path) -> set[str]:
    """As the kernel names them; empty where it does not say."""
    for line in line_blocks(root, _CPUINFO):
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


def line_blocks(root: Path, name: str) -> list[str]:
    """The lines of a file, none where it cannot be read."""
    try:
        return text_of(root, name).splitlines()
    except OSError:
        return []


def _model(root: Path) -> str | None:
    found: dict[str, str] = {}
    for line in text_of(root, _CPUINFO).splitlines():
        name, _, value = line.partition(":")
        found.setdefault(name.strip(), value.strip())
    if "model name" in found:
        return found["model name"]
    part = (found.get("CPU implementer", ""), found.get("CPU part", ""))
    return _ARM.get(part) or (f"ARM part {part[1]}" if part[1] else None)


def _ranges(words: str) -> Iterator[int]:
    """0-3,8 as 0, 1, 2, 3, 8."""
    for word in words.split(","):
        first, _, last = word.partition("-")
        if first.isdigit():
            yield from range(int(first), int(last if last.isdigit() else first) + 1)
