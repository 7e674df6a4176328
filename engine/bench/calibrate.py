"""`bench calibrate`: what passes were predicted to cost against what they took (the paper's Fig. 6).

The prices learn from every second block only; the others are predicted, by prices that never saw them.
Beside them: what drafts claimed against how often the target agreed, and what each kind of pass costs here.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from engine.bench.interrupt import interruptible
from engine.bench.loading import load_here
from engine.bench.prompts import prompts_of
from engine.bench.report import machine, show
from engine.bench.take import Line
from engine.prices import Load, Prices
from engine.size import size

if TYPE_CHECKING:
    from engine.session import Session


class _Split:
    """Stands before a session's prices: every second full pass is only predicted. Keeps (load, predicted,
    took)."""

    def __init__(self, prices: Prices) -> None:
        self._learn, self._count = prices.passed, 0
        self._prices = prices
        self.held_out: list[tuple[Load, float, float]] = []

    def passed(self, load: Load, ms: float) -> None:
        self._count += 1
        if self._count % 2 or not self._prices.full.known:
            self._learn(load, ms)
        else:
            self.held_out.append((load, self._prices.full.predict(load), ms))


def run(args: Namespace) -> None:
    """Answers the prompts with drafts of every length, then prints one line per number of positions."""
    prompts = prompts_of(args.model)
    budget = args.budget.bytes_for(args.model) if args.budget else None
    with interruptible(), _session(args, budget) as session:
        split = _Split(session.experience.prices)
        session.experience.prices.passed = split.passed  # type: ignore[method-assign]
        started = time.perf_counter()
        for _ in range(args.rounds):
            for prompt in prompts:
                _answer(session, args, prompt)
        lines = [*_passes(split.held_out), *_acceptance(session), *_coefficients(session)]
        limit = f"budget {size(budget)}" if budget else "no budget"
    foot = f"{args.model.name}, {limit}, {time.perf_counter() - started:.0f} s; {machine()}"
    show(lines, as_json=args.json, foot=foot)


@contextmanager
def _session(args: Namespace, budget: int | None) -> Iterator[Session]:
    session = load_here(args.model, n_ctx=2048, n_threads=args.threads, budget=budget)
    with session:
        yield session


def _answer(session: Session, args: Namespace, prompt: Sequence[int]) -> None:
    from engine.loop import generate
    from engine.native import CancelFlag
    from engine.request import Request, Sampling, Speculation

    for mode, expansion in (("ar", "fixed"), ("s2-exact", "fixed"), ("s2-exact", "priced")):
        speculation = Speculation(mode, args.draft_experts, args.draft_length, expansion)
        session.rewind(0)
        request = Request(
            tuple(prompt), Sampling(temperature=0.0), speculation, args.predict, ignore_eos=True
        )
        for _ in generate(session, request, CancelFlag()):
            pass


def _passes(held_out: Sequence[tuple[Load, float, float]]) -> list[Line]:
    """Per number of positions, and for all: the error of a prediction against the time taken."""
    widths = sorted({load.positions for load, _, _ in held_out})
    lines = []
    for name, widths_of in [*((str(width), {width}) for width in widths), ("all", set(widths))]:
        part = [(told, took) for load, told, took in held_out if load.positions in widths_of]
        errors = [abs(told / took - 1) for told, took in part]
        lines.append(
            Line(
                bench="calibrate",
                row="pass",
                positions=name,
                count=len(part),
                predicted_ms=float(np.median([told for told, _ in part])),
                took_ms=float(np.median([took for _, took in part])),
                error_median=float(np.median(errors)),
                error_p90=float(np.quantile(errors, 0.9)),
            )
        )
    return lines


def _acceptance(session: Session) -> list[Line]:
    """By decile of what the draft claimed."""
    return [
        Line(bench="calibrate", row=f"{name} drafts", claimed=claimed, accepted=accepted, judged=judged)
        for name, table in session.experience.tables()
        for claimed, accepted, judged in table.table()
        if judged
    ]


def _coefficients(session: Session) -> list[Line]:
    prices = session.experience.prices
    costs = {"plain pass": prices.plain_ms, "draft step": prices.draft_ms, **prices.full.coefficients}
    return [Line(bench="calibrate", row="price", what=what, ms=ms) for what, ms in costs.items()]
