"""`bench fit`: does a model start without a flag where memory is short, and does it take what was planned?

Each row is an engine of its own, as a chat starts it, in a memory cgroup that counts the file's pages too.
A plan is made inside the cgroup too, as the engine makes its own, and stands beside what the kernel counted.
"""

from __future__ import annotations

import contextlib
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from engine.bench.cgroup import MemoryGroup
from engine.bench.child import Child, ChildEnded
from engine.bench.disk import drop_cached
from engine.bench.interrupt import interruptible
from engine.bench.report import machine, show
from engine.errors import NativeError, S2Error
from engine.forecast import PROMPT
from engine.model import files_of, stem_of
from engine.size import size

_STORY = "The harbour wakes before the town does, and every boat has a story that nobody has asked for. "
_QUESTION = "Go on with this story, and do not stop.\n"
_WORDS = 78 * PROMPT // 100  # of such prose are PROMPT tokens
_END_S = 10.0  # until the kernel has tidied up after an engine


@dataclass(frozen=True, slots=True)
class Outcome:
    """What engine.bench.fit_row found: the plan, and what came of it. `expected`: from, to by figure. With a
    sweep: `auto` as it was planned, the `best` of the other `cells` of engine.bench.fit_sweep, and all."""

    mode: str
    budget_bytes: int
    plan_bytes: int
    peak_bytes: int
    tok_s: float
    prefill_s: float
    hit: float
    expected: dict[str, tuple[float, float]]
    auto_tok_s: float = 0.0
    auto_of_best: float = 0.0
    best: dict[str, Any] = field(default_factory=dict)
    cells: list[dict[str, Any]] = field(default_factory=list)

    @property
    def of_plan(self) -> float:
        return self.peak_bytes / self.plan_bytes


@dataclass(frozen=True, slots=True)
class Row:
    """`limit_bytes` 0: none. `error`: why there is no outcome, or what is wrong with one; "" for nothing."""

    model: str
    limit_bytes: int
    outcome: Outcome | None
    error: str = ""


def run(args: Namespace) -> None:
    """A row per model and limit; raises NativeError where one did not start or took more than it may."""
    rows = []
    with interruptible():
        for model in args.models:
            for limit in args.limits:
                drop_cached(files_of(model))
                rows.append(_row(model, limit, args))
                if args.json:  # a sweep takes minutes a row, and a run that is ended keeps what it found
                    show([_json(rows[-1])], as_json=True, foot="")
    if not args.json:
        foot = (
            f"an answer of {args.predict} tokens to a prompt of about {PROMPT}; peak: the engine process, by "
            f"the kernel; in brackets what the plan expected; {machine()}"
        )
        show([_words(row) for row in rows], as_json=False, foot=foot)
    if failed := sum(bool(row.error) for row in rows):
        raise NativeError(f"{failed} of {len(rows)} rows failed", hint="their last column says why")


def _row(model: Path, limit: int, args: Namespace) -> Row:
    try:
        with MemoryGroup.make(limit) if limit else nullcontext() as group, _home() as home:
            arguments = [str(model.absolute()), str(home)]
            with Child("the engine", "engine.bench.fit_row", arguments, group=group) as row:
                try:
                    question = {"text": _text(), "tokens": args.predict, "sweep": args.sweep, "limit": limit}
                    outcome = Outcome(**row.ask(question))
                except ChildEnded as ended:
                    return Row(
                        stem_of(model), limit, None, "killed for memory" if _killed(group) else ended.line()
                    )
            return Row(stem_of(model), limit, outcome, _fault(outcome, group))
    except S2Error as error:
        return Row(stem_of(model), limit, None, error.line())


@contextmanager
def _home() -> Iterator[Path]:
    """A folder for an engine, which ends with it, whatever became of the process that had started it."""
    with tempfile.TemporaryDirectory(prefix="s2-fit-", ignore_cleanup_errors=True) as folder:
        try:
            yield Path(folder)
        finally:
            engines = [one for one in psutil.process_iter() if _works_in(one, folder)]
            for engine in engines:
                with contextlib.suppress(psutil.NoSuchProcess):
                    engine.kill()
            psutil.wait_procs(engines, _END_S)


def _works_in(process: psutil.Process, folder: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(word.startswith(folder) for word in process.cmdline())
    return False


def _fault(outcome: Outcome, group: MemoryGroup | None) -> str:
    if _killed(group):
        return "killed for memory"
    return "over its budget" if 0 < outcome.budget_bytes < outcome.peak_bytes else ""


def _killed(group: MemoryGroup | None) -> bool:
    return group is not None and group.killed()


def _text() -> str:
    return _QUESTION + " ".join((_STORY * _WORDS).split()[:_WORDS])


def _json(row: Row) -> dict[str, object]:
    outcome = {} if row.outcome is None else {**asdict(row.outcome), "of_plan": row.outcome.of_plan}
    head = {"bench": "fit", "model": row.model, "limit_bytes": row.limit_bytes}
    return {**head, **outcome, "error": row.error or None}


def _words(row: Row) -> dict[str, object]:
    words: dict[str, object] = {
        "of": row.model,
        "limit": size(row.limit_bytes) if row.limit_bytes else "none",
    }
    if (found := row.outcome) is not None:
        words |= {
            "mode": found.mode,
            "budget": size(found.budget_bytes) if found.budget_bytes else "none",
            "plan": size(found.plan_bytes),
            "peak": size(found.peak_bytes),
            "of plan": found.of_plan,
            "tok/s": _beside(found.tok_s, found.expected["tok_s"]),
            "prefill s": _beside(found.prefill_s, found.expected["prefill_s"]),
            "hit": _beside(found.hit, found.expected["hit"]),
        }
        if found.best:
            words |= {"auto": found.auto_tok_s, "of best": found.auto_of_best, "best": _named(found.best)}
    return {**words, "error": row.error or None}


def _named(cell: dict[str, Any]) -> str:
    experts = f"@{cell['draft_experts']}" if cell["draft_experts"] else ""
    budget = size(cell["budget_bytes"]) if cell["budget_bytes"] else "no limit"
    return f"{cell['mode']}{experts} in {budget}"


def _beside(value: float, expected: tuple[float, float]) -> str:
    return f"{value:.3g} ({expected[0]:.3g} to {expected[1]:.3g})"
