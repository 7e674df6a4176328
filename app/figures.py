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
    from collections.abc import Callable, Mapping, Sequence

    from app.sheet import Look
    from engine.events import Timings
    from engine.messages import Snapshot

    Values = Sequence[float | None]

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


def answer_rows(
    trend: Trend, timings: Timings | None, *, mode: str, running: bool, has_store: bool
) -> list[Row]:
    """The value is of the last second while the answer is `running`, then of all of it, as in `timings`.

    `mode`: what it is written in, whatever was chosen for the next.
    """
    whole = timings if timings is not None and timings.predicted_n else None

    def row(name: str, values: Values, most: float | None, now: str, of_all: str, what: str) -> Row:
        shown = now if running else of_all
        look: Look = "faint" if shown.startswith("–") else "value"
        return Row(name, _history(name, values, most, shown, look), f"{what}, each second; in all: {of_all}")

    now = last(trend.speed)
    written = "what this answer is written in" if running else "what the last answer was written in"
    rows = [
        Row("written in", (labelled("written in"), (mode or "–", "value")), written),
        row(
            "speed",
            trend.speed,
            None,
            "–" if now is None else speed(now),
            speed(whole.predicted_per_second) if whole else "–",
            "tokens delivered per second",
        ),
        row(
            "accepted",
            trend.accepted,
            1.0,
            _percent(last(trend.accepted)),
            acceptance(whole),
            f"drafted tokens that the model agreed with; {per_pass(whole)} tokens per pass",
        ),
    ]
    if not has_store:
        why = "hits and reads are counted where experts are on disk"
        return [*rows, Row("hit", (labelled("hit"), ("all experts in memory", "value")), why)]
    read = last(trend.read)
    return [
        *rows,
        row("hit", trend.hit, 1.0, _percent(last(trend.hit)), hits(whole), "experts in memory when needed"),
        row(
            "read",
            trend.read,
            None,
            "–" if read is None else f"{read:.1f} MiB/tok",
            read_per_token(whole),
            "read from disk per token",
        ),
    ]


def _history(
    name: str, values: Values, most: float | None, shown: str, look: Look
) -> tuple[tuple[str, Look], ...]:
    return labelled(name), (spark(values, _SPARK, most), "full"), (f" {shown}", look)


def _memory(used: Reading, total: Reading, free: Reading) -> Row:
    words = f"{_of(used.value, total.value)}, {_part(free.value, total.value)} free" if used.known else ""
    why = f"{_source(used)}: of machine or cgroup; free is what programs may still take"
    return _gauge("memory", used, _share(used.value, total.value), words, why)


def budget_row(trend: Trend) -> Row:
    """The history of the engine's memory, beside those of the answer."""
    why = "memory of the engine each second, of its budget or else of the machine's memory"
    shown = _percent(last(trend.memory))
    return Row("of budget", _history("of budget", trend.memory, 1.0, shown, "value"), why)


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
    return f"{_part(part, whole)} of {size(whole)}"


def _part(part: int, whole: int) -> str:
    """A part of what is named beside it: without a unit where both have the same."""
    number, _, unit = size(part).partition(" ")
    return number if size(whole).endswith(f" {unit}") else size(part)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}%"
