"""What NVIDIA's management library says about GPUs, asked in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.machine.feed import Feed
from engine.machine.helper import HelperError, ask
from engine.machine.reading import Reading

DEADLINE_S = 5.0  # without persistence mode a driver takes seconds to wake up
_SCRIPT = Path(__file__).parent / "programs" / "ask_nvml.py"
_SOURCE = "NVML"
# Integrated GPUs share the machine's memory, and NVML says nothing or nonsense about it.
_SHARING = ("orin", "thor", "xavier", "gb10", "nvgpu", "tegra")
# What is there while a driver is: its own files, and the door to that of Windows.
_DRIVERS = ("proc/driver/nvidia", "dev/nvidiactl", "dev/dxg")
# Of the clock limits that NVML reports: heat, power and hardware brakes; not idle, not a clock someone set.
_BRAKES = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x20: "heat",
    0x40: "heat",
    0x80: "power brake",
}


def read_nvml(
    *, deadline_s: float = DEADLINE_S, environment: Mapping[str, str] | None = None
) -> dict[str, Reading]:
    """Readings "gpu.0.…" for each GPU, and "nvml" with an error when there is no answer at all."""
    try:
        answer = ask([sys.executable, "-I", str(_SCRIPT)], deadline_s, environment)
    except HelperError as error:
        return {"nvml": Reading(None, _SOURCE, error.message)}
    return parse(answer)


def feed_nvml(root: Path, interval_s: float, *, environment: Mapping[str, str] | None = None) -> Feed:
    """The same again and again, for `parse`; not asked where no driver is loaded."""

    def command() -> list[str]:
        if not any((root / place).exists() for place in _DRIVERS):
            raise HelperError("no NVIDIA driver here")
        return [sys.executable, "-I", str(_SCRIPT), f"{interval_s:g}"]

    return Feed(command, start_s=DEADLINE_S, deadline_s=3 * interval_s, environment=environment)


def parse(answer: Mapping[str, Any]) -> dict[str, Reading]:
    if "error" in answer:
        return {"nvml": Reading(None, _SOURCE, _advice(str(answer["error"])))}
    found = {"nvml": Reading("answers", _SOURCE), "nvml.driver": _reading(answer.get("driver"))}
    for number, gpu in enumerate(answer.get("gpus", ())):
        found |= {f"gpu.{number}.{name}": reading for name, reading in _gpu(gpu).items()}
    return found


def _gpu(gpu: Mapping[str, Any]) -> dict[str, Reading]:
    found = {name: _reading(gpu.get(name)) for name in ("name", "load", "temperature")}
    name = str(found["name"].value or "").lower()
    shared = any(word in name for word in _SHARING)
    memory, free = (_reading(gpu.get(key)) for key in ("memory", "memory_free"))
    pieces = gpu.get("parts") or ()
    if pieces:  # the process gets one part of a divided GPU
        memory, free = (_reading(pieces[0].get(key)) for key in ("memory", "memory_free"))
    if shared or not _sane(memory, free):
        reason = (
            "shares the machine's memory" if shared else memory.error or free.error or "no sensible figure"
        )
        memory = free = Reading(None, _SOURCE, reason)
    found |= {"memory": memory, "memory_free": free, "shared": Reading(shared, "its name")}
    for key, unit in (("power_mw", "power_w"), ("power_limit_mw", "power_limit_w")):
        power = _reading(gpu.get(key))
        found[unit] = Reading(power.value / 1000 if power.known else None, _SOURCE, power.error)
    found["bandwidth"] = _bandwidth(_reading(gpu.get("bus_bits")), _reading(gpu.get("memory_clock_mhz")))
    found["slowed"] = _slowed(_reading(gpu.get("throttle")))
    capability = _reading(gpu.get("capability"))
    version = ".".join(map(str, capability.value)) if capability.known else None
    found["capability"] = Reading(version, _SOURCE, capability.error)
    return found


def _reading(item: object) -> Reading:
    if not isinstance(item, Mapping):
        return Reading(None, _SOURCE, "not asked")
    return Reading(item.get("value"), _SOURCE, str(item.get("error", "")))


def _sane(memory: Reading, free: Reading) -> bool:
    return (
        isinstance(memory.value, int)
        and isinstance(free.value, int)
        and 0 < memory.value < 1 << 44
        and 0 <= free.value <= memory.value
    )


def _bandwidth(bits: Reading, clock: Reading) -> Reading:
    """Bytes per second: two transfers per clock over the whole bus."""
    if not (bits.value and clock.value):
        return Reading(None, _SOURCE, bits.error or clock.error or "not told")
    return Reading(2 * clock.value * 1_000_000 * bits.value // 8, "NVML: bus width and clock")


def _slowed(throttle: Reading) -> Reading:
    if not isinstance(throttle.value, int):
        return Reading(None, _SOURCE, throttle.error)
    words = dict.fromkeys(word for bit, word in _BRAKES.items() if throttle.value & bit)
    return Reading(", ".join(words), _SOURCE)


def _advice(error: str) -> str:
    """What to do about it, for the failures that people meet."""
    if "mismatch" in error.lower():
        return f"{error}: the driver was updated under the running kernel, restart the machine"
    if "not found" in error.lower():
        return f"{error}: no NVIDIA driver here, the CPU is used"
    return error
