"""One row of a bench under a budget: a process that loads a model and answers prompts.

Run as `python -m engine.bench.budget_row ROW ...`. Its one question names the prompts, as token ids.
"""

from __future__ import annotations

import resource
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.bench.cgroup import MemoryGroup
from engine.bench.child import Child, serve
from engine.bench.disk import disk_bytes
from engine.bench.rowname import STOCK, SYNC, RowName
from engine.cards import peak_bytes

if TYPE_CHECKING:
    from engine.session import Session

Answers = dict[str, Any]
#: Fields of the store's figures that only grow.
COUNTED = (
    "asked",
    "hits",
    "late",
    "bytes_read",
    "bytes_prefetched",
    "prefetched",
    "prefetch_used",
    "stall_ns",
)
#: And those of a request's timings that say how drafts fared.
_DRAFTS = ("draft_n", "draft_n_accepted", "verify_n")
_Answer = Callable[[Sequence[int], int], Generator[int, None, None]]
_MARGIN = 64  # cells beyond what an answer needs


def start(name: str, args: Namespace, budget: int, n_ctx: int, group: MemoryGroup | None) -> Child:
    """A process for the row `name`: `stock`, a mode, or a mode with SYNC behind it."""
    arguments = [name, "-m", str(args.model.absolute()), "-b", str(budget), "-c", str(n_ctx)]
    arguments += ["-t", str(args.threads)]
    arguments += ["--draft-experts", str(args.draft_experts), "--draft-length", str(args.draft_length)]
    arguments += ["--temp", str(args.temp)]
    return Child(f"row {name}", __name__, arguments, group=group)


def ask(row: Child, prompts: Sequence[Sequence[int]], tokens: Sequence[int], seconds: float) -> Answers:
    """Answers to all but the first of `prompts`, which warms up; so many `tokens` of each, or fewer, if they
    take more than `seconds` each."""
    answers: Answers = row.ask({"prompts": list(prompts), "tokens": list(tokens), "seconds": seconds})
    return answers


def room_for(prompts: Sequence[Sequence[int]], tokens: Sequence[int]) -> int:
    """The context it takes to answer."""
    longest = max(len(prompt) + count for prompt, count in zip(prompts, tokens, strict=True))
    return longest + _MARGIN


class _Clock:
    """What passed while answers were decoded, prompts left out. `counters` are those of a store; an answer
    that takes longer than `seconds` is cut off."""

    def __init__(self, counters: Callable[[], dict[str, int]], seconds: float) -> None:
        self._counters, self._seconds = counters, seconds
        self._ids: list[list[int]] = []
        self._prefill_s = self._decode_s = 0.0
        self._prompt_tokens = self._major_faults = 0
        self._disk_bytes: int | None = 0
        self._store: dict[str, int] = {}

    def time(self, prompt: Sequence[int], count: int, answer: _Answer) -> None:
        """Takes `count` tokens behind the first: that one follows from the prompt's own pass."""
        started = time.perf_counter()
        with closing(answer(prompt, count + 1)) as tokens:
            ids = [next(tokens)]
            first, before = time.perf_counter(), self._snapshot()
            for token in tokens:
                ids.append(token)
                if time.perf_counter() > first + self._seconds:
                    break
            ended, after = time.perf_counter(), self._snapshot()
        self._ids.append(ids)
        self._prompt_tokens += len(prompt)
        self._prefill_s += first - started
        self._decode_s += ended - first
        self._major_faults += after[0] - before[0]
        self._disk_bytes = _grown(self._disk_bytes, before[1], after[1])
        for name, value in after[2].items():
            self._store[name] = self._store.get(name, 0) + value - before[2][name]

    def _snapshot(self) -> tuple[int, int | None, dict[str, int]]:
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
        return faults, disk_bytes(), self._counters()

    def as_json(self) -> Answers:
        return {
            "ids": self._ids,
            "tokens": sum(len(ids) - 1 for ids in self._ids),
            "decode_s": self._decode_s,
            "prompt_tokens": self._prompt_tokens,
            "prefill_s": self._prefill_s,
            "major_faults": self._major_faults,
            "disk_bytes": self._disk_bytes,
            "rss_peak_bytes": peak_bytes(),
            "store": self._store,
        }


def _grown(total: int | None, before: int | None, after: int | None) -> int | None:
    return None if total is None or before is None or after is None else total + after - before


def _answers(answer: _Answer, counters: Callable[[], dict[str, int]] = dict) -> Callable[[Any], Answers]:
    def run(question: Any) -> Answers:
        (warm, *prompts), (warm_tokens, *tokens) = question["prompts"], question["tokens"]
        _Clock(counters, question["seconds"]).time(warm, warm_tokens, answer)
        clock = _Clock(counters, question["seconds"])
        for prompt, count in zip(prompts, tokens, strict=True):
            clock.time(prompt, count, answer)
        return clock.as_json()

    return run


def _stock(args: Namespace) -> Callable[[Any], Answers]:
    """llama.cpp as it comes, from the mapped file; repacked weights would be a copy beside its pages."""
    from engine.bench.stock import Stock

    stock = Stock(args.model, args.context, args.threads, repack=False)

    def answer(prompt: Sequence[int], count: int) -> Generator[int, None, None]:
        stock.prefill(prompt)
        token = stock.sample()
        yield token
        for _ in range(count - 1):
            stock.feed([token])
            token = stock.sample()
            yield token

    return _answers(answer)


def _ours(args: Namespace) -> Callable[[Any], Answers]:
    """A mode as the engine runs it, its experts in a store."""
    from engine.events import Tokens
    from engine.loop import generate
    from engine.native import CancelFlag
    from engine.request import Request

    name = RowName.parse(args.row, SYNC)
    session, store_counters = _load(args, sync=bool(name.ending))
    earlier, now = dict.fromkeys(_DRAFTS, 0), dict.fromkeys(_DRAFTS, 0)
    sampling, speculation = name.sampling(args), name.speculation(args)

    def answer(prompt: Sequence[int], count: int) -> Generator[int, None, None]:
        session.rewind(0)
        request = Request(tuple(prompt), sampling, speculation, max_tokens=count, ignore_eos=True)
        try:
            for event in generate(session, request, CancelFlag()):
                if isinstance(event, Tokens):
                    now.update((name, getattr(event.timings, name)) for name in _DRAFTS)
                    yield from event.ids
        finally:  # the bench may want no more
            earlier.update((name, earlier[name] + now[name]) for name in _DRAFTS)
            now.update(dict.fromkeys(_DRAFTS, 0))

    def counters() -> dict[str, int]:
        return store_counters() | {name: earlier[name] + now[name] for name in _DRAFTS}

    return _answers(answer, counters)


def _load(args: Namespace, *, sync: bool) -> tuple[Session, Callable[[], dict[str, int]]]:
    """A session whose experts are in a store, and what the store counts."""
    from engine.bench.loading import load_here
    from engine.store import Store

    if sync:  # nobody but a bench asks for it, so that no wish and no plan knows of it
        Store.open = partial(Store.open, sync=True)  # type: ignore[method-assign]
    session = load_here(
        args.model, n_ctx=args.context, n_threads=args.threads, budget=args.budget, store=True
    )
    store = session.store
    assert store is not None

    def counters() -> dict[str, int]:
        stats = store.stats()
        return {name: getattr(stats, name) for name in COUNTED}

    return session, counters


def _main() -> None:
    parser = ArgumentParser()
    parser.add_argument("row")
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-b", "--budget", type=int, required=True)
    parser.add_argument("-c", "--context", type=int, required=True)
    parser.add_argument("-t", "--threads", type=int, required=True)
    parser.add_argument("--draft-experts", type=int, required=True)
    parser.add_argument("--draft-length", type=int, required=True)
    parser.add_argument("--temp", type=float, required=True)
    args = parser.parse_args()
    serve(lambda: (_stock if args.row == STOCK else _ours)(args))


if __name__ == "__main__":
    _main()
