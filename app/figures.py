"""Live figures of the machine and of the answer as rows: a gauge or a history, the value, its source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.gauges import bar, spark
from app.labels import acceptance, hits, per_pass, read_per_token, speed
from app.sheet import Row, labelled
from app.text import one_line
from app.trend import Trend, last
from engine.machine.reading import Reading
from engine.size import size

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from app.sheet import Look
    from engine.events import Timings
    from engine.messages import Snapshot

_BAR = 8
_SPARK = 20
_MISSING = Reading(None, "", "not looked at yet")
_OLD = " ▲old"  # also where colours are not


def machine_rows(found: Mapping[str, Reading], snapshot: Snapshot | None) -> list[Row]:
    def reading(name: str) -> Reading:
        return found.get(name, _MISSING)

    has_store = bool(snapshot and snapshot.budget_bytes and snapshot.slot_bytes)
    return [
        _memory(reading("memory.used"), reading("memory.total"), reading("memory.free")),
        _engine(reading("engine.memory"), reading("memory.total"), snapshot),
        *([_experts(snapshot)] if snapshot and has_store else []),
        _cpu(reading("cpu.load"), reading("engine.cpus")),
        _gpu(reading("gpu.load"), reading("gpu.used"), reading("gpu.total")),
        _words("disk", _rate(reading("engine.read"), "engine "), _rate(reading("disk.read"), "all ")),
        _words("power", _in(reading("power"), "W"), _in(reading("gpu.power"), "W", "GPU ")),
        _words("heat", _in(reading("temperature"), "°C"), _in(reading("gpu.temperature"), "°C", "GPU ")),
        _words("throttled", (reading("throttled"), lambda value: one_line(str(value or "no"), 60))),
    ]


def answer_rows(trend: Trend, timings: Timings | None, *, has_store: bool) -> list[Row]:
    """`timings` of the whole answer, which the reasons tell; the histories are of each second."""
    whole = timings if timings is not None and timings.predicted_n else None

    def row(
        name: str, values: list[float | None], now: str, of_all: str, what: str, most: float | None = None
    ) -> Row:
        shown: Look = "value" if last(values) is not None else "faint"
        pieces: tuple[tuple[str, Look], ...] = (
            labelled(name),
            (spark(values, _SPARK, most), "full"),
            (f" {now}", shown),
        )
        return Row(name, pieces, f"{what}, each second; of the whole answer: {of_all}")

    now_speed, accepted, hit, read, memory = (
        last(values) for values in (trend.speed, trend.accepted, trend.hit, trend.read, trend.memory)
    )
    rows = [
        row(
            "speed",
            list(trend.speed),
            "–" if now_speed is None else speed(now_speed),
            speed(whole.predicted_per_second) if whole else "–",
            "tokens delivered per second",
        ),
        row(
            "accepted",
            list(trend.accepted),
            _percent(accepted),
            f"{acceptance(whole)}, {per_pass(whole)} tokens per pass",
            "drafted tokens that the model agreed with, of those verified",
            1.0,
        ),
    ]
    if has_store:
        rows += [
            row(
                "hit",
                list(trend.hit),
                _percent(hit),
                hits(whole),
                "experts in memory when they were needed, of all that were",
                1.0,
            ),
            row(
                "read",
                list(trend.read),
                "–" if read is None else f"{read:.1f} MiB/tok",
                read_per_token(whole),
                "read from disk per token",
            ),
        ]
    else:
        rows.append(_plain("experts", "all in memory", "hits and reads are counted where they are on disk"))
    rows.append(
        row(
            "budget",
            list(trend.memory),
            _percent(memory),
            "–",
            "memory of the engine, of its budget or else of the machine",
            1.0,
        )
    )
    return rows


def _memory(used: Reading, total: Reading, free: Reading) -> Row:
    words = f"{_of(used.value, total.value)}, {size(free.value)} free" if used.known else ""
    why = f"{_source(used)}: of machine or cgroup; free is what programs may still take"
    return _gauge("memory", used, _share(used.value, total.value), words, why)


def _engine(used: Reading, total: Reading, snapshot: Snapshot | None) -> Row:
    budget = snapshot.budget_bytes if snapshot else 0
    words = (_of(used.value, budget) if budget else f"{size(used.value)}, no limit") if used.known else ""
    peak = f", {size(snapshot.peak_bytes)} at most so far" if snapshot else ""
    why = f"{_source(used)}: the whole engine process{peak}"
    return _gauge("engine", used, _share(used.value, budget or total.value), words, why)


def _experts(snapshot: Snapshot) -> Row:
    whole = snapshot.plan.expert_bytes if snapshot.plan else 0
    held = min(snapshot.slot_bytes, whole) if whole else snapshot.slot_bytes
    reading = Reading(held, "the engine")
    words = f"{_of(held, whole)} in memory"
    return _gauge("experts", reading, _share(held, whole), words, "room for experts that were read from disk")


def _cpu(load: Reading, cpus: Reading) -> Row:
    words = f"{load.value:.0f}%" if load.known else ""
    engine = f", engine on {cpus.value:.1f} CPUs" if cpus.known else ""
    why = f"{_source(load)}; engine: {_source(cpus)}"
    return _gauge("CPU", load, _share(load.value, 100.0), words + engine, why)


def _gpu(load: Reading, used: Reading, total: Reading) -> Row:
    words = f"{load.value:.0f}%" if load.known else ""
    memory = f", {_of(used.value, total.value)}" if used.known and total.known else ""
    why = f"{_source(load)}; memory: {_source(used)}"
    return _gauge("GPU", load, _share(load.value, 100.0), words + memory, why)


def _gauge(name: str, reading: Reading, share: float | None, words: str, why: str) -> Row:
    if not reading.known:
        return Row(name, (labelled(name), (_absent(reading), "faint")), why)
    full, empty = bar(share, _BAR)
    pieces: tuple[tuple[str, Look], ...] = (
        labelled(name),
        (full, "full"),
        (empty, "empty"),
        (f" {words}", "value"),
    )
    return Row(name, (*pieces, *_age(reading)), why)


def _words(name: str, *parts: tuple[Reading, Callable[[object], str]]) -> Row:
    """Values side by side; why there is none only where there is no other."""
    known = [(reading, words) for reading, words in parts if reading.known]
    pieces: list[tuple[str, Look]] = [labelled(name)]
    for reading, words in known:
        pieces += [(("" if len(pieces) == 1 else " · ") + words(reading.value), "value"), *_age(reading)]
    if not known:
        pieces.append((_absent(parts[0][0]), "faint"))
    return Row(name, tuple(pieces), "; ".join(_source(reading) for reading, _ in parts))


def _plain(name: str, words: str, why: str) -> Row:
    return Row(name, (labelled(name), (words, "value")), why)


def _rate(reading: Reading, of: str) -> tuple[Reading, Callable[[object], str]]:
    return reading, lambda value: f"{of}{float(str(value)) / 1e6:.0f} MB/s"


def _in(reading: Reading, unit: str, of: str = "") -> tuple[Reading, Callable[[object], str]]:
    return reading, lambda value: f"{of}{float(str(value)):.0f} {unit}"


def _age(reading: Reading) -> tuple[tuple[str, Look], ...]:
    return ((_OLD, "warning"),) if reading.stale else ()


def _absent(reading: Reading) -> str:
    return f"n/a: {one_line(reading.error or 'not told', 60)}"


def _source(reading: Reading) -> str:
    """Where a value is from, or why there is none, or no new one."""
    source = one_line(reading.source, 120)
    if reading.error:
        return f"{source}: {one_line(reading.error, 160)}" if source else one_line(reading.error, 160)
    return source


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _of(part: int, whole: int) -> str:
    """A part and its whole, with one unit where both have the same."""
    number, _, unit = size(part).partition(" ")
    words = size(whole)
    return f"{number} of {words}" if words.endswith(f" {unit}") else f"{size(part)} of {words}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}%"
