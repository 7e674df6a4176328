"""The disk a file lies on: its file system, what kind of device it is, what is free."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from engine.machine.reading import Reading, line_of, read, text_of

_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "fuse.sshfs", "ceph", "glusterfs")
_IN_MEMORY = ("tmpfs", "ramfs")


@dataclass(frozen=True, slots=True)
class Disk:
    """`device`: name of the whole block device, "" where there is none. `kind` in words."""

    filesystem: str
    device: str
    kind: str
    model: str = ""


def read_disk(root: Path, place: Path) -> dict[str, Reading]:
    """Of the disk below `place`, a file or a folder of the running machine."""
    disk = read("/proc/self/mountinfo, /sys/dev/block", lambda: disk_of(root, place))
    found: Disk | None = disk.value
    parts = {"filesystem": None, "device": None, "kind": None, "model": None} if found is None else {
        "filesystem": found.filesystem or None,
        "device": found.device or None,
        "kind": found.kind,
        "model": found.model or None,
    }  # fmt: skip
    readings = {f"disk.{name}": Reading(value, disk.source, disk.error) for name, value in parts.items()}
    return {**readings, "disk.free": read("statvfs", lambda: free_bytes(place))}


def disk_of(root: Path, place: Path) -> Disk:
    """Raises OSError when `place` cannot be looked at."""
    number = existing(place).stat().st_dev
    major, minor = os.major(number), os.minor(number)
    filesystem, source = _mount(root, f"{major}:{minor}")
    block = root / f"sys/dev/block/{major}:{minor}"
    if not block.exists() and source.startswith("/dev/"):  # btrfs and overlays have numbers of their own
        block = root / "sys/class/block" / Path(source).name
    if not block.exists():
        return Disk(filesystem, "", _kind_without_device(filesystem))
    block = block.resolve()
    whole = block.parent if (block / "partition").exists() else block
    return Disk(filesystem, whole.name, _kind(root, whole), line_of(whole, "device/model"))


def free_bytes(place: Path) -> int | None:
    """Free below `place`; None where the file system does not count, as in memory and over some networks."""
    usage = shutil.disk_usage(existing(place))
    return usage.free if usage.total else None


def existing(place: Path) -> Path:
    """The nearest folder that is there, `place` itself if it is."""
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _mount(root: Path, number: str) -> tuple[str, str]:
    """File system and source of what is mounted under this device number."""
    for line in text_of(root, "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [number] and len(after.split()) >= 2:
            return after.split()[0], after.split()[1]
    return "", ""


def _kind_without_device(filesystem: str) -> str:
    if filesystem in _NETWORK or filesystem.startswith("fuse."):
        return "network or user file system"
    return "memory" if filesystem in _IN_MEMORY else "unknown"


def _kind(root: Path, whole: Path) -> str:
    name = whole.name
    if name.startswith("nvme"):
        return "NVMe SSD"
    if name.startswith("mmcblk"):
        return "SD card" if line_of(whole, "device/type") == "SD" else "eMMC"
    if name.startswith(("dm-", "md")):
        below = sorted((whole / "slaves").iterdir()) if (whole / "slaves").is_dir() else []
        return _kind(root, (root / "sys/class/block" / below[0].name).resolve()) if below else "combined"
    if name.startswith(("vd", "xvd")):
        return "virtual disk"
    if "/usb" in str(whole):
        return "USB disk"
    return "hard disk" if line_of(whole, "queue/rotational") == "1" else "SSD"
