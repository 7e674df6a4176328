"""What a Jetson tells about itself without any service: device tree, sysfs, its power mode, its sensors."""

from __future__ import annotations

import re
from pathlib import Path

from engine.machine.reading import Reading, line_of, number_in, read, text_of
from engine.machine.temperature import hot_zone, temperatures

_JETPACK = {35: "5", 36: "6", 38: "7", 39: "7"}  # by the major number of Linux for Tegra
# Part numbers in the device tree, longest text first: module and its memory's bytes per second by data sheet.
_MODULES = {
    "p3767-0000": ("Orin NX 16 GB", 102_400_000_000),
    "p3767-0001": ("Orin NX 8 GB", 102_400_000_000),
    "p3767-0003": ("Orin Nano 8 GB", 102_400_000_000),
    "p3767-0004": ("Orin Nano 4 GB", 51_200_000_000),
    "p3767-0005": ("Orin Nano 8 GB", 102_400_000_000),
    "p3701-0000": ("AGX Orin", 204_800_000_000),
    "p3701-0004": ("AGX Orin 32 GB", 204_800_000_000),
    "p3701-0005": ("AGX Orin 64 GB", 204_800_000_000),
    "p3701-0008": ("AGX Orin Industrial 64 GB", 204_800_000_000),
    "p3834-0008": ("Thor", 273_000_000_000),
    "p3834-0000": ("Thor", 273_000_000_000),
}
_RELEASE = re.compile(r"R(?P<major>\d+).*?REVISION: (?P<minor>[\d.]+)")


def is_jetson(root: Path) -> bool:
    return "nvidia,tegra" in _compatible(root) or (root / "etc/nv_tegra_release").exists()


def read_jetson(root: Path) -> dict[str, Reading]:
    """Nothing on other machines."""
    if not is_jetson(root):
        return {}
    module = _module(root)
    tree = "/proc/device-tree"
    found = {
        "jetson.model": read(f"{tree}/model", lambda: text_of(root, "proc/device-tree/model").split("\n")[0]),
        "jetson.module": Reading(
            module[0] or None, f"{tree}/compatible", "" if module[0] else "unknown part"
        ),
        "jetson.bandwidth": Reading(module[1] or None, "data sheet of the module"),
        "jetson.l4t": read("/etc/nv_tegra_release", lambda: _release(root)),
        "jetson.jetpack": read("/etc/nv_tegra_release", lambda: _jetpack(root)),
        "jetson.power_mode": read("/var/lib/nvpmodel/status, /etc/nvpmodel.conf", lambda: power_mode(root)),
        "jetson.temperature": read(
            "/sys/class/thermal", lambda: max(temperatures(root).values(), default=None)
        ),
        "jetson.throttled": read("/sys/class/hwmon/*/oc*_event_cnt", lambda: over_current_events(root)),
        "jetson.hot": read("/sys/class/thermal/*/trip_point", lambda: hot_zone(root)),
    }
    return found | read_gpu_node(root)


def power_mode(root: Path) -> str | None:
    """The mode's name, or its number where the names are not there."""
    number = line_of(root, "var/lib/nvpmodel/status").rpartition(":")[2]
    if not number.strip().isdigit():
        raise FileNotFoundError
    wanted = int(number)
    for line in _lines(root, "etc/nvpmodel.conf"):
        match = re.search(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+)\s*>", line)
        if match and int(match[1]) == wanted:
            return match[2]
    return str(wanted)


def _compatible(root: Path) -> str:
    try:
        return text_of(root, "proc/device-tree/compatible")
    except OSError:
        return ""


def _module(root: Path) -> tuple[str, int]:
    names = " ".join([_compatible(root), line_of(root, "proc/device-tree/nvidia,dtsfilename")])
    for part, module in _MODULES.items():
        if part in names:
            return module
    return "", 0


def _release(root: Path) -> str | None:
    match = _RELEASE.search(text_of(root, "etc/nv_tegra_release"))
    return f"{match['major']}.{match['minor']}" if match else None


def _jetpack(root: Path) -> str | None:
    release = _release(root)
    return _JETPACK.get(int(release.split(".")[0])) if release else None


def read_gpu_node(root: Path) -> dict[str, Reading]:
    """Load in percent and clocks in MHz of the GPU's node, where the kernel has one."""
    folder = root / "sys/class/devfreq"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    node = next((name for name in names if name.endswith((".gpu", ".ga10b", "gpu-gpc-0"))), None)
    if node is None:
        return {"jetson.gpu_load": Reading(None, "/sys/class/devfreq", "no node of a GPU")}
    place = f"sys/class/devfreq/{node}"
    load = next(
        (n for f in ("device/load", "load") if (n := number_in(root, f"{place}/{f}")) is not None), None
    )
    clock, most = (number_in(root, f"{place}/{name}") for name in ("cur_freq", "max_freq"))
    source = f"/{place}"
    return {
        "jetson.gpu_load": Reading(None, source, "not told") if load is None else Reading(load / 10, source),
        "jetson.gpu_clock_mhz": Reading(clock // 1_000_000 if clock else None, source),
        "jetson.gpu_clock_max_mhz": Reading(most // 1_000_000 if most else None, source),
    }


def over_current_events(root: Path) -> int | None:
    """How often too much current slowed the board since it started."""
    folder = root / "sys/class/hwmon"
    files = sorted(folder.glob("*/oc*_event_cnt")) if folder.is_dir() else []
    counts = [number_in(folder, str(file.relative_to(folder))) for file in files]
    return sum(count for count in counts if count is not None) if files else None


def _lines(root: Path, name: str) -> list[str]:
    try:
        return text_of(root, name).splitlines()
    except OSError:
        return []
