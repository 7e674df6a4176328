"""What this machine has, as far as the engine's limits and the plan go."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.machine.cgroups import memory_limits
from engine.machine.cpu import usable_cores
from engine.machine.memory import meminfo

if TYPE_CHECKING:
    from engine.machine.reading import Readings


@dataclass(frozen=True, slots=True)
class Device:
    """`cores`: physical cores this process may use, whole ones of a quota. Memory in bytes; speeds in bytes
    per second, 0 where unknown.

    `gpu`: the native library computes on a GPU; only it can tell. `limited`: a cgroup leaves less than the
    machine has, so what is left is ours alone. `features`: instructions that matter to the kernels, as Linux
    names them. `gpu_memory_bytes`, `gpu_free_bytes`: of its own memory, 0 where it shares the machine's: that
    is counted once. `slowed`: why the machine runs slower now than it can, "" when it does not. `measured`:
    names of the speeds that were measured here, not looked up.
    """

    cores: int
    memory_bytes: int
    available_bytes: int
    arch: str
    gpu: bool = False
    name: str = ""
    jetson: bool = False
    limited: bool = False
    features: tuple[str, ...] = ()
    memory_speed: int = 0
    disk_speed: int = 0
    disk_kind: str = ""
    gpu_name: str = ""
    gpu_memory_bytes: int = 0
    gpu_free_bytes: int = 0
    gpu_speed: int = 0
    slowed: str = ""
    measured: tuple[str, ...] = ()


def detect(root: Path = Path("/")) -> Device:
    """Reads the machine's figures. A figure that cannot be read is left out of the minimum, never guessed."""
    memory = meminfo(root)
    limits = list(memory_limits(root))
    room = min((max(0, limit - used) for limit, used in limits), default=None)
    available = memory["MemAvailable"]
    return Device(
        cores=usable_cores(root),
        memory_bytes=min([memory["MemTotal"], *(limit for limit, _ in limits)]),
        available_bytes=available if room is None else min(available, room),
        arch=os.uname().machine,
        limited=room is not None and room < available,
    )


def completed(device: Device, readings: Readings) -> Device:
    """`device` with what its probes found: names, speeds, the GPU, and whether something slows it."""

    def value(name: str, default: object = 0) -> object:
        reading = readings.get(name)
        return default if reading is None or reading.value is None else reading.value

    def number(name: str) -> int:
        found = value(name)
        return int(found) if isinstance(found, (int, float)) else 0

    jetson = "jetson.model" in readings
    features = value("cpu.features", ())
    names = [str(value(name, "")) for name in ("jetson.model", "system.model", "cpu.model")]
    measured = [name for name in ("disk.read_speed", "memory.speed") if number(name)]
    shares = jetson or bool(value("gpu.0.shared", False))
    return replace(
        device,
        name=next((name for name in names if name), ""),
        jetson=jetson,
        features=tuple(features) if isinstance(features, (list, tuple)) else (),
        memory_speed=number("jetson.bandwidth") or number("memory.speed"),
        disk_speed=number("disk.read_speed"),
        disk_kind=str(value("disk.kind", "")),
        gpu_name=str(value("gpu.0.name", "")),
        gpu_memory_bytes=0 if shares else number("gpu.0.memory"),
        gpu_free_bytes=0 if shares else number("gpu.0.memory_free"),
        gpu_speed=number("jetson.bandwidth") or number("gpu.0.bandwidth"),
        slowed=_slowed(readings),
        measured=tuple(measured),
    )


def _slowed(readings: Readings) -> str:
    """In words. A power mode counts when its name promises less than all: Jetsons call that one MAXN."""
    reasons = []
    mode = readings.get("jetson.power_mode")
    if mode is not None and mode.known and not str(mode.value).upper().startswith("MAXN"):
        reasons.append(f"power mode {mode.value}")
    if (hot := readings.get("jetson.hot")) is not None and hot.known:
        reasons.append(f"heat at {hot.value}")
    if (braked := readings.get("gpu.0.slowed")) is not None and braked.value:
        reasons.append(f"the GPU's {braked.value}")
    return ", ".join(reasons)
