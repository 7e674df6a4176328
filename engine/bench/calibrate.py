"""`bench calibrate`: what passes were predicted to cost against what they took (the paper's Fig. 6).

The prices learn from every second block only; the others are predicted, by prices that never saw them.
Beside them: what drafts claimed against how often the target agreed, with drafts on the target's own cells
and apart; what each k' is worth; and what each kind of pass costs here.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine.bench.interrupt import interruptible
from engine.bench.loading import load_here
from engine.bench.prompts import prompts_of
from engine.bench.report import machine, show
from engine.bench.take import Line
from engine.calibration import Tried, candidates
from engine.draft import Draft, Drafter
from engine.errors import BadRequest
from engine.events import Done, Timings
from engine.model import read_model_info, stem_of
from engine.prices import Load, Prices
from engine.request import MAX_DRAFT_LENGTH
from engine.size import size

if TYPE_CHECKING:
    from engine.session import Session

_N_CTX = 2048


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
    """Answers the prompts with drafts of every length, context and k', then prints one line per finding."""
    if not 1 <= args.draft_length <= MAX_DRAFT_LENGTH:
        raise BadRequest(f"--draft-length is {args.draft_length}", hint=f"1 to {MAX_DRAFT_LENGTH}")
    info = read_model_info(args.model)
    if not info.is_moe:
        raise BadRequest(f"{info.path.name} is a dense model: there is no k' to find")
    prompts = prompts_of(args.model)
    budget = args.budget.bytes_for(info.size_bytes) if args.budget else 0
    wishes = {"n_ctx": _N_CTX, "n_threads": args.threads, "budget": budget or "max"}
    with interruptible(), load_here(args.model, **wishes) as session:
        split = _Split(session.experience.prices)
        session.experience.prices.passed = split.passed  # type: ignore[method-assign]
        started = time.perf_counter()
        tallies: defaultdict[Asked, Tally] = defaultdict(Tally)
        refused = ""
        for asked, prompt in _questions(session, args, len(prompts)):
            refused = _answer(session, args, prompts[prompt], asked, tallies[asked]) or refused
        if not split.held_out:
            raise BadRequest("answers are too short for a pass to be predicted", hint="give -n more tokens")
        tables = [
            [{**line, "budget_bytes": budget} for line in _passes(split.held_out)],
            _acceptance(session),
            _contexts(tallies, args.draft_experts),
            _draft_experts(session, tallies, args),
            _coefficients(session),
        ]
        limit = f"budget {size(budget)}" if budget else "no budget"
    seconds = time.perf_counter() - started
    foot = f"{stem_of(args.model)}, {limit}{refused}, {seconds:.0f} s; {machine()}"
    for table in tables:
        show(table, as_json=args.json, foot=foot if table is tables[-1] else "")


@dataclass(frozen=True, slots=True)
class Asked:
    """One way to answer one of the prompts."""

    mode: str
    experts: int
    expansion: str
    prompt: int


@dataclass(slots=True)
class Tally:
    """What answers came to, added up. `judged`: drafted tokens up to the first that was not accepted."""

    drafted: int = 0
    judged: int = 0
    accepted: int = 0
    passes: int = 0
    tokens: int = 0
    ms: float = 0.0

    def add(self, timings: Timings) -> None:
        self.drafted += timings.draft_n
        self.accepted += timings.draft_n_accepted
        self.passes += timings.verify_n
        self.tokens += timings.predicted_n
        self.ms += timings.predicted_ms

    @classmethod
    def sum(cls, tallies: Sequence[Tally]) -> Tally:
        return cls(*(sum(column) for column in zip(*map(astuple, tallies), strict=True)))

    @property
    def acceptance(self) -> float | None:
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_pass(self) -> float | None:
        return self.tokens / self.passes if self.passes else None


class _Counted:
    """A drafter, and how far its drafts were looked at."""

    def __init__(self, drafter: Drafter, tally: Tally) -> None:
        self._drafter, self._tally = drafter, tally
        self.begin, self.propose, self.close = drafter.begin, drafter.propose, drafter.close

    def judged(self, draft: Draft, accepted: int, looked_at: int, ms: float) -> None:
        self._tally.judged += min(looked_at, accepted + 1)
        self._drafter.judged(draft, accepted, looked_at, ms)


def _questions(session: Session, args: Namespace, prompts: int) -> Iterator[tuple[Asked, int]]:
    """Every way to answer each prompt, `args.rounds` times. What is compared comes one after the other."""
    k = args.draft_experts
    others = [experts for experts in candidates(session.info.n_expert_used) if experts != k]
    ways = [("ar", k, "fixed"), ("s2-exact", k, "fixed"), ("es", k, "fixed"), ("s2-exact", k, "priced")]
    ways += [("s2-exact", experts, "fixed") for experts in others]
    for _ in range(args.rounds):
        for prompt in range(prompts):
            for mode, experts, expansion in ways:
                yield Asked(mode, experts, expansion, prompt), prompt


def _answer(session: Session, args: Namespace, prompt: Sequence[int], asked: Asked, tally: Tally) -> str:
    """Why it was refused, or ""."""
    from engine.drafters import drafter_for
    from engine.loop import generate
    from engine.native import CancelFlag
    from engine.request import Request, Sampling, Speculation

    speculation = Speculation(asked.mode, asked.experts, args.draft_length, asked.expansion)
    session.rewind(0)
    request = Request(tuple(prompt), Sampling(temperature=0.0), speculation, args.predict, ignore_eos=True)
    try:
        drafter = drafter_for(session, request)
    except BadRequest as error:
        return f"; no {asked.mode}: {error.message}"
    counted = None if drafter is None else _Counted(drafter, tally)
    for event in generate(session, request, CancelFlag(), counted):
        if isinstance(event, Done):
            tally.add(event.timings)
    return ""


def _sum(tallies: Iterable[tuple[Asked, Tally]], mode: str, experts: int) -> Tally:
    """Of answers in `mode` whose drafts always had the same length."""
    wanted = (mode, experts, "fixed")
    return Tally.sum(
        [tally for asked, tally in tallies if (asked.mode, asked.experts, asked.expansion) == wanted]
    )


def _contexts(tallies: Mapping[Asked, Tally], experts: int) -> list[Line]:
    """What drafting on the target's own cells is worth: for each prompt, and for all (S2-MoE, Fig. 8)."""
    prompts = sorted({asked.prompt for asked in tallies})
    lines = []
    for name, wanted in [*((str(prompt), {prompt}) for prompt in prompts), ("all", set(prompts))]:
        shared, apart = (
            _sum(
                ((asked, tally) for asked, tally in tallies.items() if asked.prompt in wanted), mode, experts
            )
            for mode in ("s2-exact", "es")
        )
        lines.append(
            Line(
                bench="calibrate",
                row="context",
                prompt=name,
                shared=shared.acceptance,
                apart=apart.acceptance,
                shared_tokens_per_pass=shared.tokens_per_pass,
                apart_tokens_per_pass=apart.tokens_per_pass,
            )
        )
    return lines


def _draft_experts(session: Session, tallies: Mapping[Asked, Tally], args: Namespace) -> list[Line]:
    """Each k': what is predicted of a token with drafts of the best length, and what one took with ours."""
    lines = []
    for experts in sorted({asked.experts for asked in tallies}):
        tally = _sum(tallies.items(), "s2-exact", experts)
        kind, acceptance = session.experience.kind("self", experts), tally.accepted / max(1, tally.judged)
        tried = Tried.of(experts, kind, acceptance, args.draft_length)
        lines.append(
            Line(
                bench="calibrate",
                row="k'",
                experts=experts,
                draft_ms=tried.draft_ms,
                acceptance=tried.acceptance,
                length=tried.length,
                token_ms=tried.token_ms,
                took_ms=tally.ms / max(1, tally.tokens),
            )
        )
    return lines


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
    costs = {"plain pass": prices.plain_ms, **prices.full.coefficients}
    return [Line(bench="calibrate", row="price", what=what, ms=ms) for what, ms in costs.items()]
