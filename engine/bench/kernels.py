"""`bench kernels`: what the CPU's matrix kernels need for several rows against one.

A pass multiplies weights that together are several times the last-level cache, so it reads them from memory,
as decoding does. Our exact kernels with R rows alternate with the same for one row; one row of ours
alternates with one row of stock llama.cpp in a process of its own, and with nothing but reading the weights.
Run as `python -m engine.bench.kernels TYPE KIND THREADS` this is that other process: it answers with the
milliseconds of a pass.
"""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType

import numpy as np

from engine.bench.child import Child, serve
from engine.bench.decode import stock_library
from engine.bench.ggml import F32, I32, TYPES, Backend, Context, Library
from engine.bench.kernel_check import check
from engine.bench.report import machine, ratio, show
from engine.device import detect
from engine.errors import BadRequest, NativeError

_TIMED = ("Q4_0", "Q4_K", "Q8_0")
_TIMES_CACHE = 4
_SAMPLE_S = 0.05  # at least, for one figure of an alternation
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_PATTERN_ROWS = 256  # quantised once and repeated: kernels do not look at values, and quantising is slow

Line = dict[str, object]


@dataclass(frozen=True)
class Shape:
    """Weights of one tensor; `experts` of them in a mixture, `used` per product."""

    width: int
    height: int
    experts: int = 1
    used: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """In ggml's order."""
        mixture = self.experts > 1
        return (self.width, self.height, self.experts) if mixture else (self.width, self.height)


KINDS = {"dense": Shape(2048, 2048), "expert": Shape(2048, 768, experts=64, used=8)}


def run(args: Namespace) -> None:
    """Times or checks the types and kinds asked for and prints a table.

    What the arithmetic allows is left out: it would need the peak of each processor's own instructions.
    """
    everything = tuple(TYPES) if args.check else _TIMED
    types = _chosen(args.types, TYPES, "type") if args.types else everything
    kinds = _chosen(args.kinds, KINDS, "kind")
    library = Library()
    if args.check:
        _check(library, types, kinds, as_json=args.json)
        return
    args.threads = args.threads or detect().cores
    stock = stock_library() if args.stock else None
    table = [line for name in types for kind in kinds for line in _time_all(library, name, kind, args, stock)]
    foot = "ratios of times: to_one of ours with one row, to_stock of one row to stock llama.cpp's, "
    foot += (
        f"read_to_one of reading the weights to one row, the floor for any number; {args.threads} threads, "
    )
    show(table, as_json=args.json, foot=foot + f"median of {args.rounds} alternations; {machine()}")


def _chosen(words: str, known: Collection[str], what: str) -> list[str]:
    names = {name.lower(): name for name in known}
    for word in words.split(","):
        if word.lower() not in names:
            raise BadRequest(f"no {what} {word!r}", hint=f"{what}s are " + ", ".join(known))
    return [names[word.lower()] for word in words.split(",")]


def _check(library: Library, types: Sequence[str], kinds: Sequence[str], *, as_json: bool) -> None:
    table: list[Line] = []
    for name in types:
        for kind in kinds:
            table += _check_lines(library, name, kind)
    foot = "rows together against each row alone, bit for bit, and against float64; "
    show(table, as_json=as_json, foot=foot + machine())
    if any(line["differences"] for line in table):
        raise NativeError("a row's product depends on more than the row", hint="see the table")


def _check_lines(library: Library, name: str, kind: str) -> Iterator[Line]:
    line: Line = {"bench": "kernels", "type": name, "kind": kind}
    buffers = library.buffers_for(name, *KINDS[kind].sizes) if library.has_type(name) else []
    if not buffers:
        yield {**line, "buffer": None, "differences": None, "result": "not available"}
    for buffer in buffers:
        found = check(library, name, kind, buffer)
        result = found[0] if found else "same bits"
        label = library.buffer_name(buffer)
        yield {**line, "buffer": label, "differences": len(found), "result": result}


def _time_all(library: Library, name: str, kind: str, args: Namespace, stock: Path | None) -> list[Line]:
    line: Line = {"bench": "kernels", "type": name, "kind": kind}
    if not library.has_type(name) or not library.buffers_for(name, *KINDS[kind].sizes):
        return [{**line, "buffer": "not available"}]
    rows = sorted({1, *args.rows})
    with contextlib.ExitStack() as stack:
        passes = stack.enter_context(Passes(library, name, kind, rows, args.threads, exact=True))
        line["buffer"] = passes.buffer
        pairs = {str(count): _of_rows(passes, count) for count in rows[1:]}
        pairs["read"] = passes.read
        if stock is not None:
            pairs["stock"] = stack.enter_context(_stock(stock, name, kind, args.threads)).ask
        times = _alternate(_of_rows(passes, 1), pairs, args.rounds)
    ones = [one for _, beside in times.values() for one in beside]
    lines: list[Line] = [{**line, "rows": 1, "ms": median(ones), "to_one": 1.0, "to_stock": None}]
    if stock is not None:
        others, beside = times["stock"]
        lines[0]["to_stock"] = ratio(beside, others)
    for count in rows[1:]:
        mine, beside = times[str(count)]
        lines.append({**line, "rows": count, "ms": median(mine), "to_one": ratio(mine, beside)})
    read, beside = times["read"]
    floor = {"read_to_one": ratio(read, beside), "read_gb_s": passes.bytes / median(read) / 1e6}
    return [{**line, **floor} for line in lines]


def _of_rows(passes: Passes, rows: int) -> Callable[[], float]:
    return lambda: passes.time(rows)


def _alternate(
    one: Callable[[], float], others: dict[str, Callable[[], float]], rounds: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Times of each of `others` and, beside each, of `one`; who goes first changes from round to round."""
    for other in others.values():
        one()
        other()  # pages, caches and clocks warm up
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in others}
    for i in range(rounds):
        for name, other in others.items():
            mine, beside = times[name]
            for function, kept in ((one, beside), (other, mine))[:: 1 if i % 2 else -1]:
                kept.append(function())
    return times


class Passes:
    """Weights in memory, and for each number of rows a graph that multiplies them all once."""

    def __init__(
        self, library: Library, name: str, kind: str, rows: Sequence[int], threads: int, *, exact: bool
    ) -> None:
        self._shape = KINDS[kind]
        buffers = library.buffers_for(name, *self._shape.sizes)[0]
        self.buffer = library.buffer_name(buffers)
        with contextlib.ExitStack() as building:
            self._backend = building.enter_context(Backend(library, threads, exact=exact))
            self._readers = building.enter_context(ThreadPoolExecutor(threads))
            self._threads = threads
            self._weights = self._fill(building, library, name, buffers)
            self._graphs = {count: self._graph(building, library, count) for count in rows}
            self._stack = building.pop_all()

    def __enter__(self) -> Passes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del self._memory
        self._stack.close()

    def time(self, rows: int) -> float:
        """Milliseconds of a pass."""
        return _lasting(lambda: self._backend.compute(self._graphs[rows]))

    def read(self) -> float:
        """Milliseconds of reading the weights' memory with as many threads."""
        mine, *others = np.array_split(self._memory, self._threads)

        def read() -> None:
            waiting = [self._readers.submit(np.bitwise_xor.reduce, part) for part in others]
            np.bitwise_xor.reduce(mine)
            for reader in waiting:
                reader.result()

        return _lasting(read)

    def _fill(self, stack: contextlib.ExitStack, library: Library, name: str, buffers: int) -> list[int]:
        """As many tensors as it takes to be several times the cache."""
        shape = self._shape
        random = np.random.default_rng(0)
        pattern = library.quantize(
            name, random.standard_normal((_PATTERN_ROWS, shape.width), dtype=np.float32)
        )
        values = np.tile(pattern, (shape.height * shape.experts // _PATTERN_ROWS, 1))
        count = -(-_TIMES_CACHE * last_level_cache() // values.nbytes)
        self.bytes = count * values.nbytes
        context = stack.enter_context(Context(library, count))
        weights = [context.tensor(TYPES[name], *shape.sizes) for _ in range(count)]
        buffer = context.allocate(buffers)
        for tensor in weights:
            context.write(tensor, values)
        self._memory = context.memory(buffer)
        return weights

    def _graph(self, stack: contextlib.ExitStack, library: Library, rows: int) -> int:
        """Results lie over one another, as the next layer's do in a model: they cost no memory traffic."""
        shape = self._shape
        calls = shape.experts // shape.used
        products = len(self._weights) * calls
        context = stack.enter_context(Context(library, products + calls + 2, graphs=1))
        mixture = shape.experts > 1
        sizes = (shape.width, 1, rows) if mixture else (shape.width, rows)
        activations = context.tensor(F32, *sizes)
        place = context.tensor(F32, shape.height, shape.used, rows)
        ids = [context.tensor(I32, shape.used, rows) for _ in range(calls)] if mixture else [None]
        buffer = context.allocate()
        random = np.random.default_rng(rows)
        context.write(activations, random.standard_normal((rows, shape.width), dtype=np.float32))
        for first, tensor in enumerate(ids):
            if tensor is not None:  # all rows on the same experts, and each expert in one product of a pass
                chosen = first + calls * np.arange(shape.used, dtype=np.int32)
                context.write(tensor, np.tile(chosen, (rows, 1)))
        results = [
            context.product(weights, activations, tensor) for weights in self._weights for tensor in ids
        ]
        context.overlay(results, place, buffer)
        return context.graph(results)


def _lasting(work: Callable[[], None]) -> float:
    """Milliseconds of `work`, the mean of as many as last a while.

    A busy neighbour takes its turns in milliseconds: it would miss most short passes and hit every long one.
    """
    started, passed, count = time.perf_counter(), 0.0, 0
    while passed < _SAMPLE_S:
        work()
        count += 1
        passed = time.perf_counter() - started
    return passed / count * 1e3


def last_level_cache(caches: Path = _CACHES) -> int:
    """Bytes of the largest cache of the first core; 32 MiB where the system does not say."""
    sizes = [32 << 20]
    with contextlib.suppress(OSError, ValueError):
        found = [path.read_text().strip() for path in caches.glob("index*/size")]
        sizes = [int(text.rstrip("K")) << 10 for text in found] or sizes
    return max(sizes)


def _stock(library: Path, name: str, kind: str, threads: int) -> Child:
    """A process that times one row in stock llama.cpp."""
    return Child("stock llama.cpp", __name__, [name, kind, str(threads)], library=library)


def _main(name: str, kind: str, threads: str) -> None:
    library = Library()
    with Passes(library, name, kind, [1], int(threads), exact=False) as passes:
        serve(lambda: lambda _: passes.time(1))


if __name__ == "__main__":
    _main(*sys.argv[1:])
