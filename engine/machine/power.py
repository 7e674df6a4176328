"""What the board draws, by the current sensors on it; what its processor has used, by the counter in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.machine.reading import Reading, line_of, number_in, read, text_of

_SENSORS = ("ina2", "ina3")  # INA219, INA226, INA3221, ...: on boards, between supply and load
_WHOLE = ("VDD_IN", "POM_5V_IN", "VIN_SYS")  # rails that feed all others


@dataclass(frozen=True, slots=True)
class Energy:
    """Microjoules since some start; begins again at 0 after `most`. `of`: what uses it, in words."""

    used: int
    most: int
    of: str


def read_board_power(root: Path) -> Reading:
    """Watts of the rail that feeds the board, or of all its rails together."""
    rails = _rails(root)
    if not rails:
        return Reading(None, "/sys/class/hwmon", "no sensor of the board's supply")
    whole = [name for name in rails if name.startswith(_WHOLE)]
    names = whole[:1] or list(rails)
    return Reading(round(sum(rails[name] for name in names), 3), f"/sys/class/hwmon: {', '.join(names)}")


def read_energy(root: Path) -> Reading:
    """An Energy of the platform or else of the processor packages; most systems show it to root alone."""
    folder = root / "sys/class/powercap"
    zones = sorted(folder.glob("intel-rapl:?")) if folder.is_dir() else []
    names = {zone: line_of(zone, "name") for zone in zones}
    chosen = [zone for zone in zones if names[zone] == "psys"][:1] or [
        zone for zone in zones if names[zone].startswith("package")
    ]
    source = "/sys/class/powercap/intel-rapl"
    if not chosen:
        return Reading(None, source, "no counter of energy")
    of = "platform" if names[chosen[0]] == "psys" else "processor"

    def energy() -> Energy:
        used = sum(int(text_of(zone, "energy_uj")) for zone in chosen)
        return Energy(used, sum(number_in(zone, "max_energy_range_uj") or 0 for zone in chosen), of)

    return read(source, energy)


def _rails(root: Path) -> dict[str, float]:
    """Watts by the name of the rail."""
    folder, found = root / "sys/class/hwmon", {}
    for chip in sorted(folder.glob("hwmon*")) if folder.is_dir() else ():
        if not line_of(chip, "name").startswith(_SENSORS):
            continue
        for number in range(1, 5):
            watts = _watts(chip, number)
            label = line_of(chip, f"in{number}_label") or line_of(chip, "label") or f"rail {number}"
            if watts is not None and label != "NC":  # not connected
                found[label] = watts
    return found


def _watts(chip: Path, number: int) -> float | None:
    power = number_in(chip, f"power{number}_input")
    if power is not None:
        return power / 1e6
    milliamperes, millivolts = (number_in(chip, f"{kind}{number}_input") for kind in ("curr", "in"))
    return None if milliamperes is None or millivolts is None else milliamperes * millivolts / 1e6
