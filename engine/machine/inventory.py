"""All probes of this machine: those that take no time, and those that may."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from engine.device import Device, completed, detect
from engine.machine.cpu import read_cpu
from engine.machine.disk import read_disk
from engine.machine.graphics import read_graphics
from engine.machine.jetson import is_jetson, read_jetson
from engine.machine.jtop import read_jtop
from engine.machine.memory import read_memory
from engine.machine.nvml import read_nvml
from engine.machine.reading import Reading
from engine.machine.speeds import measure, remembered
from engine.machine.surroundings import read_surroundings
from engine.paths import speeds_cache

_LET_THE_STORE_FILL_S = 10.0  # its reads come first, and two that measure at once would both be wrong


def quick(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> dict[str, Reading]:
    """What files of the kernel say; milliseconds."""
    return {
        **read_surroundings(root, environment),
        **read_cpu(root),
        **read_memory(root),
        **read_graphics(root),
        **read_jetson(root),
    }


def of_disk(place: Path, root: Path = Path("/"), *, measured: bool = False) -> dict[str, Reading]:
    """The disk below `place` and the speeds of this machine: remembered, or `measured` in a second."""
    take = partial(measure, again=True) if measured else remembered
    return {**read_disk(root, place), **take(root, place, speeds_cache())}


def slow(root: Path = Path("/")) -> dict[str, Reading]:
    """What libraries and services say, asked at the same time, each in a process with a deadline of seconds.

    jtop is asked on a Jetson only, or where its socket is.
    """
    probes: list[Callable[[], dict[str, Reading]]] = [read_nvml]
    if is_jetson(root):
        probes.append(read_jtop)
    found: dict[str, Reading] = {}
    with ThreadPoolExecutor(len(probes)) as pool:
        for readings in pool.map(lambda probe: probe(), probes):
            found |= readings
    return found


def this_machine(
    place: Path, *, gpu: bool = False, thorough: bool = False
) -> tuple[Device, dict[str, Reading]]:
    """What a plan for the model at `place` needs to know, and everything that was found.

    Takes milliseconds; `thorough` asks libraries and services too, and measures what nobody has: seconds.
    `gpu`: the native library computes on a GPU.
    """
    found = merged(quick(), of_disk(place))
    if thorough:
        found = merged(found, slow(), of_disk(place, measured=not _speeds_known(found)))
    elif gpu and not is_jetson(Path("/")):
        found = merged(found, read_nvml())
    return completed(replace(detect(), gpu=gpu), found), found


def remember_disk(place: Path, alone: threading.Lock) -> None:
    """Measures the disk below `place` if nobody has, holding `alone`; for a thread in the background."""
    time.sleep(_LET_THE_STORE_FILL_S)
    with alone:
        if not of_disk(place)["disk.read_speed"].known:
            measure(Path("/"), place, speeds_cache(), disk_only=True)


def _speeds_known(found: Mapping[str, Reading]) -> bool:
    return all(found[name].known for name in ("disk.read_speed", "memory.speed") if name in found)


def merged(*parts: Mapping[str, Reading]) -> dict[str, Reading]:
    """Later parts over earlier ones, but never an error over a value."""
    found: dict[str, Reading] = {}
    for part in parts:
        for name, reading in part.items():
            if reading.known or name not in found:
                found[name] = reading
    return found
