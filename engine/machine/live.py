"""What the machine does at this moment, one look after the other, for whoever watches.

A look reads small files of the kernel and what helper processes have said; it never waits for those. It may
still hang where a file does: it belongs into a thread that nobody depends on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.machine import jtop, nvml
from engine.machine.cgroups import SELF, memory_limits
from engine.machine.disk import disk_of
from engine.machine.feed import Feed
from engine.machine.jetson import is_jetson, read_gpu_node
from engine.machine.memory import meminfo
from engine.machine.power import read_board_power, read_energy
from engine.machine.reading import Reading, Readings
from engine.machine.temperature import read_temperature
from engine.machine.throttling import brake_counts, brakes
from engine.machine.usage import Rates, read_disk_bytes, read_process, read_ticks

INTERVAL_S = 1.0  # between two answers of a helper
_FRESH_S = 2.5  # an answer older than this is marked
_LOST_S = 30.0  # and one older than this is none
_REMEMBER_BRAKE_S = 5.0
_NO_ENGINE = Reading(None, "", "no engine runs")


class Live:
    """`look` takes one. For one thread at a time; `close` ends the helpers."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        feeds: Mapping[str, Feed] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`feeds`: the helpers "nvml" and "jtop"; by default those that this machine may have."""
        self._root, self._clock = root, clock
        self._feeds = _feeds(root) if feeds is None else feeds
        self._rates = Rates()
        self._devices: dict[Path, Reading] = {}
        self._braked: dict[str, int] = {}
        self._braked_at: dict[str, float] = {}

    def look(self, pid: int | None = None, place: Path | None = None) -> dict[str, Reading]:
        """`pid`: the engine's process, `place`: a file on the disk that it reads.

        Bytes, bytes per second, percent, watts, degrees Celsius; processors in use as a number of them.
        """
        now = self._clock()
        for feed in self._feeds.values():
            feed.look()
        graphics = self._graphics()
        return {
            **self._memory(pid),
            **self._engine(pid, now),
            "cpu.load": self._cpu_load(),
            "disk.read": self._disk(place, now),
            **{name: graphics[name] for name in ("gpu.load", "gpu.used", "gpu.total", "gpu.power")},
            "gpu.temperature": graphics["gpu.temperature"],
            "power": self._power(now),
            "temperature": _first(self._of_jtop("jetson.temperature"), read_temperature(self._root)),
            "throttled": self._throttled(pid, graphics["gpu.slowed"], now),
        }

    def close(self) -> None:
        for feed in self._feeds.values():
            feed.close()

    def _memory(self, pid: int | None) -> dict[str, Reading]:
        info, limits = meminfo(self._root), list(memory_limits(self._root, pid or SELF))
        room = min((max(0, limit - used) for limit, used in limits), default=None)
        free, source = info["MemAvailable"], "/proc/meminfo"
        total = min([info["MemTotal"], *(limit for limit, _ in limits)])
        if room is not None and room < free:
            free, source = room, "the tightest cgroup"
        free = min(free, total)
        return {
            "memory.total": Reading(total, source),
            "memory.used": Reading(total - free, source),
            "memory.free": Reading(free, source),
        }

    def _engine(self, pid: int | None, now: float) -> dict[str, Reading]:
        if pid is None:
            return dict.fromkeys(("engine.memory", "engine.cpus", "engine.read"), _NO_ENGINE)
        found = read_process(self._root, pid)
        return {
            "engine.memory": found["memory"],
            "engine.cpus": self._rates.of(f"seconds of {pid}", found["seconds"], now),
            "engine.read": self._rates.of(f"bytes of {pid}", found["bytes_read"], now),
        }

    def _cpu_load(self) -> Reading:
        """In percent of all processors: busy ticks for each tick that passed, whatever a clock says."""
        ticks = read_ticks(self._root)
        if not ticks.known:
            return ticks
        busy, passed = ticks.value
        share = self._rates.of("busy", Reading(busy, ticks.source), passed)
        return Reading(100 * share.value, share.source) if share.known else share

    def _disk(self, place: Path | None, now: float) -> Reading:
        if place is None:
            return Reading(None, "/proc/diskstats", "no model")
        device = self._devices.get(place)
        if device is None:
            device = self._devices[place] = _device(self._root, place)
        if not device.known:
            return device
        return self._rates.of(f"disk {device.value}", read_disk_bytes(self._root, device.value), now)

    def _graphics(self) -> dict[str, Reading]:
        found = self._answer("nvml", nvml.parse)
        missing = self._silence("nvml")

        def value(name: str) -> Reading:
            return found.get(f"gpu.0.{name}", missing)

        total, free = value("memory"), value("memory_free")
        used = Reading(total.value - free.value if total.known and free.known else None, free.source)
        load = value("load")
        root = self._root
        if is_jetson(root):
            load = _first(self._of_jtop("jetson.gpu_load"), read_gpu_node(root)["jetson.gpu_load"], load)
        return {
            "gpu.load": load,
            "gpu.used": Reading(used.value, used.source, free.error),
            "gpu.total": total,
            "gpu.power": value("power_w"),
            "gpu.temperature": value("temperature"),
            "gpu.slowed": value("slowed"),
        }

    def _power(self, now: float) -> Reading:
        told = _first(self._of_jtop("jetson.power_w"), read_board_power(self._root))
        if told.known:
            return told
        energy = read_energy(self._root)
        if not energy.known:
            return energy if energy.error != "no counter of energy" else told
        count = Reading(energy.value.used / 1e6, f"{energy.source}, {energy.value.of}")
        return self._rates.of("energy", count, now, int(energy.value.most / 1e6))

    def _throttled(self, pid: int | None, gpu: Reading, now: float) -> Reading:
        """In words, "" when nothing is; None where nothing would tell."""
        words, counts = brakes(self._root), brake_counts(self._root, pid or SELF)
        for name, count in counts.items():
            if count > self._braked.get(name, count):
                self._braked_at[name] = now
        self._braked = counts
        words += [name for name, at in self._braked_at.items() if now - at < _REMEMBER_BRAKE_S]
        words += [f"the GPU's {gpu.value}"] if gpu.value else []
        source = "trip points, counters of heat, current and quota, NVML"
        if not (words or counts or gpu.known or read_temperature(self._root).known):
            return Reading(None, source, "nothing here would tell")
        return Reading(", ".join(words), source)

    def _of_jtop(self, name: str) -> Reading:
        return self._answer("jtop", jtop.parse).get(name, self._silence("jtop"))

    def _answer(self, name: str, parse: Callable[[Mapping[str, Any]], Readings]) -> Readings:
        """The last of a helper, as old as it is; nothing where there is none, or none worth showing."""
        feed = self._feeds.get(name)
        if feed is None or feed.answer is None or feed.age_s > _LOST_S:
            return {}
        found = parse(feed.answer)
        if not feed.error and feed.age_s <= _FRESH_S:
            return found
        words = f"{feed.age_s:.0f} s old: {feed.error or 'nothing newer yet'}"
        return {
            name: Reading(reading.value, reading.source, words if reading.known else reading.error)
            for name, reading in found.items()
        }

    def _silence(self, name: str) -> Reading:
        feed = self._feeds.get(name)
        return Reading(None, name, "not asked here" if feed is None else feed.error or "not told")


def _feeds(root: Path) -> dict[str, Feed]:
    feeds = {"nvml": nvml.feed_nvml(root, INTERVAL_S)}
    if is_jetson(root):
        feeds["jtop"] = jtop.feed_jtop(INTERVAL_S)
    return feeds


def _device(root: Path, place: Path) -> Reading:
    try:
        disk = disk_of(root, place)
    except OSError as error:
        return Reading(None, str(place), error.strerror or str(error))
    if not disk.device:
        return Reading(None, "/proc/self/mountinfo", f"{disk.filesystem or 'this'} is no local disk")
    return Reading(disk.device, "/sys/dev/block")


def _first(*readings: Reading) -> Reading:
    """The first that is known and new, else one that is known, else the last, which says why."""
    for reading in readings:
        if reading.known and not reading.stale:
            return reading
    return next((reading for reading in readings if reading.known), readings[-1])
