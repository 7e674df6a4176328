"""`bench overhead`: the share of a block's time that is spent outside native calls."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from statistics import median
from typing import Any

from engine.bench.loading import load_here
from engine.bench.report import machine, show
from engine.device import detect
from engine.events import Done
from engine.loop import generate
from engine.model import stem_of
from engine.native import CancelFlag, llama
from engine.request import Request, Sampling, Speculation
from engine.session import Session

#: The native calls of a block that are worth timing; every other one counts as Python.
_CALLS = ("llama_decode", "llama_sampler_sample", "llama_sampler_copy", "llama_memory_seq_rm")


class _NativeClock:
    """Adds up the time inside functions of the bindings. What wrapping them costs counts as Python."""

    def __init__(self, bindings: Any) -> None:
        self._bindings = bindings
        self._originals = {name: getattr(bindings, name) for name in _CALLS}
        self.ns = 0

    def __enter__(self) -> _NativeClock:
        for name, original in self._originals.items():
            setattr(self._bindings, name, self._timed(original))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(self._bindings, name, original)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            started = time.perf_counter_ns()
            result = call(*args)
            self.ns += time.perf_counter_ns() - started
            return result

        return timed


def run(args: Namespace) -> None:
    """Prints Python's share for `ar` and `s2-exact`."""
    args.threads = args.threads or detect().cores
    with load_here(args.model, n_threads=args.threads) as session:
        prompt = session.dialogue.tokenize_text(
            "Once upon a time in a harbour town there lived an old clockmaker who"
        )
        rows = []
        for mode in ("ar", "s2-exact"):
            speculation = Speculation(mode, args.draft_experts, args.draft_length)
            request = Request(
                prompt, Sampling(temperature=0.0), speculation, max_tokens=args.predict, ignore_eos=True
            )
            _measure(session, request)
            rounds = [_measure(session, request) for _ in range(args.rounds)]
            rows.append(
                {
                    "bench": "overhead",
                    "row": mode,
                    "model": stem_of(args.model),
                    "block_ms": median(block for block, _ in rounds),
                    "python_share": median(share for _, share in rounds),
                }
            )
    show(rows, as_json=args.json, foot=f"{stem_of(args.model)}, median of {args.rounds} answers; {machine()}")


def _measure(session: Session, request: Request) -> tuple[float, float]:
    """(milliseconds per block, share of them outside native calls), the prompt left out."""
    session.rewind(0)
    with _NativeClock(llama()) as clock:
        events = generate(session, request, CancelFlag())
        while session.timeline.tokens != list(request.prompt):
            next(events)
        started, clock.ns = time.perf_counter_ns(), 0
        for event in events:
            if isinstance(event, Done):
                blocks = event.timings.verify_n
        total = time.perf_counter_ns() - started
    return total / blocks / 1e6, 1 - clock.ns / total
