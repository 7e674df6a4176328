"""A .zip of text that says all about a machine and this program on it: what a stranger needs to help."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

from app.privacy import hide
from engine.errors import S2Error
from engine.paths import Paths

_MOST_BYTES = 256 << 10  # of one file
_COMMAND_S = 4.0
_LOG_LINES = 300

_FILES = (
    *("proc/cpuinfo", "proc/meminfo", "proc/version", "proc/swaps", "proc/mounts", "proc/self/cgroup"),
    *("proc/self/status", "proc/pressure/memory", "proc/pressure/io", "proc/driver/nvidia/version"),
    *("proc/device-tree/model", "proc/device-tree/compatible", "etc/os-release", "etc/nv_tegra_release"),
    *("etc/nvpmodel.conf", "var/lib/nvpmodel/status", "sys/fs/cgroup/memory.max", "sys/fs/cgroup/cpu.max"),
)
_GLOBS = (
    "sys/class/thermal/thermal_zone*/type",
    "sys/class/thermal/thermal_zone*/temp",
    "sys/class/thermal/thermal_zone*/trip_point_*",
    "sys/class/devfreq/*/*_freq",
    "sys/class/devfreq/*/governor",
    "sys/class/devfreq/*/load",
    "sys/class/devfreq/*/device/load",
    "sys/class/hwmon/hwmon*/name",
    "sys/class/hwmon/hwmon*/in*_label",
    "sys/class/hwmon/hwmon*/oc*_event_cnt",
    "sys/block/*/queue/rotational",
    "sys/block/*/queue/logical_block_size",
    "sys/block/*/queue/max_sectors_kb",
    "sys/block/*/device/model",
)
_COMMANDS = (
    ("lscpu",),
    ("lsblk", "-o", "NAME,TYPE,SIZE,ROTA,FSTYPE,MODEL"),
    ("nvidia-smi",),
    ("nvidia-smi", "-q"),
    ("nvpmodel", "-q"),
    ("timeout", "2", "tegrastats", "--interval", "500"),
    ("systemctl", "status", "jtop", "--no-pager"),
    ("dpkg-query", "-W", "nvidia-jetpack", "nvidia-l4t-core"),
)


def write_bundle(place: Path, reports: dict[str, str], root: Path = Path("/")) -> list[str]:
    """Writes `reports` and what the system says of itself to `place`; returns the names in the file.

    Raises S2Error when there is a file already: a bundle never replaces anything.
    """
    texts = {**reports, "machine/files.txt": _files(root), "machine/commands.txt": _commands()}
    texts["engine-log.txt"] = _log(Paths.default().log)
    try:
        with open(place, "xb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
            place.chmod(0o600)
            for name, text in texts.items():
                bundle.writestr(name, hide(text))
    except FileExistsError:
        raise S2Error(f"{place} is there already", hint="give another name") from None
    except OSError as error:
        raise S2Error(f"{place} cannot be written: {error.strerror}") from error
    return list(texts)


def _files(root: Path) -> str:
    paths = [root / name for name in _FILES]
    for pattern in _GLOBS:
        paths += sorted(root.glob(pattern))
    return "\n".join(f"== /{path.relative_to(root)}\n{_text(path)}" for path in paths)


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(_MOST_BYTES)
    except OSError as error:
        return f"-- {error.strerror}\n"
    return content.replace(b"\x00", b"\n").decode("utf-8", "replace")


def _commands() -> str:
    return "\n".join(f"== {' '.join(command)}\n{_output(command)}" for command in _COMMANDS)


def _output(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMMAND_S,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        return "-- no such command\n"
    except subprocess.TimeoutExpired:
        return f"-- no end within {_COMMAND_S:g} s\n"
    except OSError as error:
        return f"-- {error.strerror}\n"
    return done.stdout[:_MOST_BYTES]


def _log(path: Path) -> str:
    """The last lines of the engine's log, which holds nothing that anybody wrote."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-_LOG_LINES:]) + "\n"
    except OSError as error:
        return f"-- {error.strerror}\n"
