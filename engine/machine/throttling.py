"""Whether something slows the machine down right now: heat, current, voltage, or a quota."""

from __future__ import annotations

from pathlib import Path

from engine.machine.cgroups import SELF, throttled_us
from engine.machine.jetson import over_current_events
from engine.machine.reading import line_of, number_in
from engine.machine.temperature import hot_zone

# What the firmware of a Raspberry Pi says of this moment; higher bits are of the past.
_FIRMWARE = {0x1: "too low a voltage", 0x2: "clock capped", 0x4: "heat", 0x8: "near its heat limit"}


def brakes(root: Path) -> list[str]:
    """What can be read as such, in words."""
    found = [f"heat at {zone}"] if (zone := hot_zone(root)) else []
    cooling = root / "sys/class/thermal"
    for device in sorted(cooling.glob("cooling_device*")) if cooling.is_dir() else ():
        # Of the things that cool only those that do it by less work: fans have states, too.
        if "cpufreq" in line_of(device, "type") and (number_in(device, "cur_state") or 0) > 0:
            found.append("a lower clock for heat")
            break
    try:
        bits = int(line_of(root, "sys/devices/platform/soc/soc:firmware/get_throttled", "0"), 16)
    except ValueError:
        bits = 0
    return found + [words for bit, words in _FIRMWARE.items() if bits & bit]


def brake_counts(root: Path, process: int | str = SELF) -> dict[str, int]:
    """Counts by what they mean in words: something braked `process` or the machine when one has grown."""
    counts = {
        "heat of the processor": _heat_events(root),
        "too much current": over_current_events(root),
        "its CPU quota": throttled_us(root, process),
    }
    return {words: count for words, count in counts.items() if count is not None}


def _heat_events(root: Path) -> int | None:
    folder = root / "sys/devices/system/cpu"
    files = folder.glob("cpu[0-9]*/thermal_throttle/*_throttle_count") if folder.is_dir() else ()
    counts = [number_in(folder, str(file.relative_to(folder))) for file in files]
    return sum(count for count in counts if count is not None) if counts else None
