"""How hot the machine is, by the kernel's thermal zones and by the sensors of single chips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine.machine.reading import Reading, line_of, number_in

_HOT = ("passive", "hot", "critical")
_PLACES = "/sys/class/thermal, /sys/class/hwmon"


def read_temperature(root: Path) -> Reading:
    """Degrees Celsius at the hottest sensor, whose name is in the source."""
    found = temperatures(root) | _chips(root)
    if not found:
        return Reading(None, _PLACES, "no sensor")
    name = max(found, key=lambda name: found[name])
    return Reading(found[name], name)


def temperatures(root: Path) -> dict[str, float]:
    """By the zone's name; one that is switched off gives an error or a number far below zero."""
    found = {}
    for zone in _zones(root):
        degrees = _degrees(root, f"{zone}/temp")
        if degrees is not None:
            found[line_of(root, f"{zone}/type", Path(zone).name)] = degrees
    return found


def hot_zone(root: Path) -> str | None:
    """The name of a zone that is at a point where the kernel slows things down."""
    for zone in _zones(root):
        now = number_in(root, f"{zone}/temp")
        for kind in sorted((root / zone).glob("trip_point_*_type")):
            limit = number_in(root, f"{zone}/{kind.name.replace('_type', '_temp')}")
            hot = line_of(root, f"{zone}/{kind.name}") in _HOT
            if hot and now is not None and limit is not None and 0 < limit <= now:
                return line_of(root, f"{zone}/type", "a sensor")
    return None


def _zones(root: Path) -> Iterator[str]:
    folder = root / "sys/class/thermal"
    if folder.is_dir():
        yield from (f"sys/class/thermal/{zone.name}" for zone in sorted(folder.glob("thermal_zone*")))


def _chips(root: Path) -> dict[str, float]:
    """Sensors that are no thermal zone: of processors (coretemp, k10temp), of disks."""
    folder, found = root / "sys/class/hwmon", {}
    for chip in sorted(folder.glob("hwmon*")) if folder.is_dir() else ():
        for file in sorted(chip.glob("temp*_input")):
            degrees = _degrees(root, str(file.relative_to(root)))
            if degrees is not None:
                label = line_of(chip, file.name.replace("_input", "_label"))
                found[f"{line_of(chip, 'name', chip.name)} {label}".strip()] = degrees
    return found


def _degrees(root: Path, name: str) -> float | None:
    milli = number_in(root, name)
    return milli / 1000 if milli is not None and -40_000 < milli < 200_000 else None
