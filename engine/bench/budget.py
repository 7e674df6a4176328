"""`bench decode --budget`: the expert store against llama.cpp with a mapped file, where memory is short.

Every run of a row is a process of its own, in a memory cgroup of its own if asked for; before it the kernel
forgets the model's files, so that each starts with nothing. It loads the model, answers one prompt to warm up
and others to be measured. In every alternation a plain reader reads experts from the same file: what the disk
has to give.
"""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence

from engine.bench import budget_row
from engine.bench.budget_row import Answers
from engine.bench.cgroup import MemoryGroup, NotPermitted
from engine.bench.child import ChildEnded
from engine.bench.disk import RawReader, drop_cached
from engine.bench.interrupt import interruptible
from engine.bench.prompts import prompts_of
from engine.bench.report import machine, show
from engine.bench.rowname import SYNC, RowName, heat_words
from engine.bench.take import Line, Take, figures
from engine.bench.tasks import prompts_for
from engine.device import detect
from engine.errors import BadRequest
from engine.experts import catalogue_of
from engine.model import ModelInfo, read_model_info, stem_of
from engine.pack import pack_of
from engine.request import MODES
from engine.size import size

_DEFAULT_ROWS = "stock,ar-sync,ar"
_DEFAULT_TOKENS = 16  # of each answer
_CGROUP_ROOM = 1.02  # of the budget
_READ_S = 1.0  # of each alternation


def run(args: Namespace) -> None:
    """Alternates the rows `args.rounds` times and prints medians, and ratios to the first row."""
    names = (args.rows or _DEFAULT_ROWS).split(",")
    _check(names)
    if args.prompt is not None:
        raise BadRequest(
            "-p is for the bench in memory: with --budget the prompts are given", hint="leave it out"
        )
    args.threads = args.threads or detect().cores
    args.predict = args.predict or _DEFAULT_TOKENS
    info = read_model_info(args.model)
    budget = limit_of(args, info)
    table: list[Line] = []
    with interruptible():
        for task in args.tasks or (None,):
            asked = None if task is None else prompts_for([task], args.each)
            bench = Bench(args, budget, prompts_of(args.model, asked))
            table += _table(args, bench, names, task)
    limit = f"cgroups of {size(bench.cgroup_bytes)}" if bench.cgroup_bytes else "no memory cgroup"
    foot = (
        f"{stem_of(args.model)}, {size(info.size_bytes)}, budget {size(budget)}, {limit}; "
        f"{bench.n_prompts} prompts, {args.predict} tokens each{heat_words(args)}, {args.threads} threads, "
        f"median of {args.rounds} alternations; {machine()}"
    )
    show(
        table if args.json else [_brief(line) for line in table],
        as_json=args.json,
        foot=foot + "\n" + _LEGEND,
    )


def limit_of(args: Namespace, info: ModelInfo) -> int:
    """The budget in bytes. Raises BadRequest where there is none."""
    limit = args.budget.bytes_for(info.size_bytes) if args.budget else None
    if not limit:
        raise BadRequest("without a limit there is nothing to compare under one", hint="give --budget a size")
    return int(limit)


def _table(args: Namespace, bench: Bench, names: Sequence[str], task: str | None) -> list[Line]:
    takes = bench.alternate(names)
    table: list[Line] = []
    for name in names:
        sync = takes.get(name + SYNC, takes[name] if name.endswith(SYNC) else [])
        line: Line = {
            "bench": "decode",
            "row": name,
            **({} if task is None else {"task": task}),
            "mode": (mode := RowName.parse(name, SYNC).mode),
            "exact": MODES[mode].exact,
            "model": stem_of(args.model),
            "budget_bytes": bench.budget_bytes,
            "cgroup_bytes": bench.cgroup_bytes,
            **figures(takes[name], takes[names[0]], sync, takes.get("ar", ()) if name != "ar" else ()),
            "ratio_to": names[0],
            "error": bench.failed.get(name),
            "note": bench.note or None,
        }
        table.append(line)
    return table


def _check(names: Sequence[str]) -> None:
    for name in names:
        RowName.parse(name, SYNC)
    if len(set(names)) < len(names):
        raise BadRequest("a row is named twice in --rows", hint="name each once")


class Bench:
    """The runs of the rows on the same `prompts`, the first of which warms up.

    `failed`: of rows that did, the reason. `note`: why rows go without a cgroup although one was asked for.
    """

    def __init__(self, args: Namespace, budget: int, prompts: Sequence[tuple[int, ...]]) -> None:
        self._args, self.budget_bytes, self._prompts = args, budget, prompts
        plain = catalogue_of(args.model)
        self._catalogue = pack_of(args.model) or plain
        self._files = {*plain.files, *self._catalogue.files}
        self._tokens = [args.warm, *[args.predict] * (len(prompts) - 1)]
        self._seconds = args.seconds / (len(prompts) - 1)
        self._n_ctx = budget_row.room_for(prompts, self._tokens)
        self.cgroup_bytes: int | None = int(budget * _CGROUP_ROOM) if args.cgroup else None
        self.failed: dict[str, str] = {}
        self.note = self._check_cgroup()

    @property
    def n_prompts(self) -> int:
        """Those that are measured."""
        return len(self._prompts) - 1

    def _check_cgroup(self) -> str:
        """Why there is none although one was asked for; empty if there is."""
        if self.cgroup_bytes is None:
            return ""
        try:
            with MemoryGroup.make(self.cgroup_bytes):
                return ""
        except NotPermitted as error:
            self.cgroup_bytes = None
            note = f"{error.line()}; the rows go on without a limit"
            print(f"s2chat bench: {note}", file=sys.stderr, flush=True)
            return note

    def alternate(self, names: Sequence[str]) -> dict[str, list[Take]]:
        """The takes of each row; none of a row that failed. Who goes first changes from round to round."""
        takes: dict[str, list[Take]] = {name: [] for name in names}
        with RawReader(self._catalogue) as reader:
            for i in range(self._args.rounds):
                mb_s = reader.mb_s(_READ_S)
                for name in names[:: -1 if i % 2 else 1]:
                    take = None if name in self.failed else self._take(name, mb_s)
                    if take is not None:
                        takes[name].append(take)
        return {name: [] if name in self.failed else takes[name] for name in names}

    def _take(self, name: str, mb_s: float) -> Take | None:
        drop_cached(self._files)
        with self._group() as group:
            try:
                with budget_row.start(name, self._args, self.budget_bytes, self._n_ctx, group) as row:
                    answers = budget_row.ask(row, self._prompts, self._tokens, self._seconds)
            except ChildEnded:
                if group is None or not group.killed():
                    raise
                self.failed[name] = (
                    f"out of memory: the kernel killed it at {size(group.peak() or group.limit)}"
                )
                return None
            peak = None if group is None else group.peak()
        drop_cached(self._files)
        return _take_of(answers, peak, mb_s)

    @contextlib.contextmanager
    def _group(self) -> Iterator[MemoryGroup | None]:
        if self.cgroup_bytes is None:
            yield None
            return
        with MemoryGroup.make(self.cgroup_bytes) as group:
            yield group


def _take_of(answers: Answers, peak: int | None, mb_s: float) -> Take:
    return Take(
        ids=answers["ids"],
        tokens=answers["tokens"],
        decode_s=answers["decode_s"],
        prefill_tok_s=answers["prompt_tokens"] / answers["prefill_s"],
        major_faults=answers["major_faults"],
        disk_bytes=answers["disk_bytes"],
        rss_peak_bytes=answers["rss_peak_bytes"],
        peak_bytes=peak,
        reader_mb_s=mb_s,
        store=answers["store"],
    )


_LEGEND = (
    "MB: read per token. hit, late: of the experts asked for, those in memory and those on their way.\n"
    "stall: ms of a token spent waiting. peak: MB, of the cgroup where there is one. disk: MB/s of a plain\n"
    "reader; wait: bytes read per time spent waiting against it. bound: what hiding reads behind arithmetic\n"
    "can gain over -sync; gain: what it did. x ar: against plain decode; may: what drafting can gain there\n"
    "at most by what it read. acc: drafted tokens accepted; t/pass: tokens per verify pass."
)


def _brief(line: Line) -> Line:
    """What a person looks at."""

    def number(key: str, unit: float = 1.0) -> float | None:
        value = line[key]
        return value / unit if isinstance(value, int | float) else None

    spread = f"{number('ratio_min'):.2f}–{number('ratio_max'):.2f}" if line["ratio"] is not None else None
    return {
        "row": line["row"] if line["exact"] else f"{line['row']} ≈lossy",
        **({"task": line["task"]} if "task" in line else {}),
        "tok_s": number("tok_s"),
        "ratio": number("ratio"),
        "from–to": spread,
        "prefill": number("prefill_tok_s"),
        "MB": number("bytes_per_token", 1e6),
        "hit": number("hits"),
        "late": number("late"),
        "stall": number("stall_ms_per_token"),
        "faults": number("major_faults"),
        "peak": number("rss_peak_bytes" if line["peak_bytes"] is None else "peak_bytes", 1e6),
        "disk": number("reader_mb_s"),
        "wait": number("stall_to_reader"),
        "bound": number("overlap_bound"),
        "gain": number("overlap_gain"),
        "x ar": number("ratio_to_ar"),
        "may": number("draft_bound"),
        "acc": number("acceptance"),
        "t/pass": number("tokens_per_pass"),
        "same_text": line["same_text"],
        "error": line["error"] or "",
    }
