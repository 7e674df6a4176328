"""What was found on this machine and what was chosen for the model on it, as rows, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.sheet import Row, labelled
from app.text import one_line
from engine.budget import reserve_bytes
from engine.size import size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.device import Device
    from engine.machine.reading import Reading
    from engine.messages import PlanCard, Snapshot

_RELOAD = "F10 changes it, from the next start"


@dataclass(frozen=True, slots=True)
class Machine:
    """As it was found when the panel opened."""

    device: Device
    readings: Mapping[str, Reading]


def found_rows(machine: Machine | None, free_bytes: int) -> list[Row]:
    """`free_bytes`: what is free now."""
    if machine is None:
        return [_row("machine", "looking …", "")]
    device, readings = machine.device, machine.readings

    def of(*names: str) -> str:
        return "; ".join(
            f"{name} {reading.value if reading.known else f'n/a: {reading.error}'} [{reading.source}]"
            for name in names
            if (reading := readings.get(name)) is not None
        )

    reserve = reserve_bytes(device)
    kind = "jetson" if device.jetson else "group" if device.limited else "desktop"
    cores = f"{device.cores} core{'s' if device.cores != 1 else ''}, {device.arch}"
    disk = f"{device.disk_kind or 'unknown'}, {_speed(device.disk_speed)}"
    return [
        _row("machine", device.name or "unknown", of("jetson.model", "system.model", "cpu.model")),
        _row("cores", cores, of("cpu.cores", "cpu.threads", "cpu.quota", "cpu.features")),
        _row("memory speed", _speed(device.memory_speed), of("memory.speed", "jetson.bandwidth")),
        _row("disk", disk, of("disk.device", "disk.filesystem", "disk.read_speed")),
        _row("slowed by", device.slowed or "nothing", of("jetson.power_mode", "jetson.hot") or _WHY_SLOWED),
        _row("reserved", f"{size(reserve)} for other programs", _WHY_RESERVED[kind]),
        _row(
            "headroom",
            size(max(0, free_bytes - reserve)),
            f"{size(free_bytes)} are free, less what is reserved: what the engine may still take here",
        ),
    ]


def plan_rows(snapshot: Snapshot | None) -> list[Row]:
    plan = snapshot.plan if snapshot else None
    if snapshot is None or plan is None:
        return [_row("plan", "n/a: no model is loaded yet", "")]
    beside = f"{size(plan.resident_bytes)} always in memory"
    experts = f"{size(plan.expert_bytes)}, {'in slots' if plan.store else 'held whole'}"
    return [
        _row(
            "budget", size(plan.budget_bytes) if plan.budget_bytes else "no limit", _why(plan, "budget_bytes")
        ),
        _row("weights", beside, "those outside the experts, which every token needs"),
        _row("experts", experts, _why(plan, "store")),
        _row("context", f"{plan.n_ctx} tokens", f"{_why(plan, 'n_ctx')}; {_RELOAD}"),
        _row("KV cache", plan.cache_type, f"{_why(plan, 'cache_type')}; {_RELOAD}"),
        _row("threads", f"{plan.n_threads}", _why(plan, "n_threads")),
        _row("GPU", _why(plan, "gpu_layers"), _why(plan, "gpu_layers")),
        _row("layout", _why(plan, "repack"), _why(plan, "repack")),
    ]


_WHY_SLOWED = "a power mode below the highest, heat, a brake of the GPU: as it was when this opened"
_WHY_RESERVED = {
    "desktop": "a tenth of the memory and at least 1.5 GiB, but no more than a quarter of what is free",
    "jetson": "8 % of the memory and at least 768 MiB, but no more than a quarter of what is free",
    "group": "a tenth of what the cgroup leaves and at least 256 MiB, but no more than a quarter of it",
}


def _why(plan: PlanCard, name: str) -> str:
    return plan.reasons.get(name, "not told by this engine")


def _speed(count_bytes: int) -> str:
    return f"{size(count_bytes)}/s" if count_bytes else "speed not measured yet"


def _row(name: str, words: str, why: str) -> Row:
    return Row(f"plan {name}", (labelled(name), (one_line(words, 80), "value")), one_line(why, 400))
