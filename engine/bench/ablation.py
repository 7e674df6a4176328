"""`bench ablation`: what each part of the method brings under a budget (S2-MoE, section 6.3)."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from engine.bench.ablation_chart import bars, points
from engine.bench.budget import Bench, limit_of
from engine.bench.interrupt import interruptible
from engine.bench.loading import load_here
from engine.bench.prompts import prompts_of
from engine.bench.quality import figures as quality_figures
from engine.bench.quality import score
from engine.bench.quality_text import answers, cut_to
from engine.bench.report import machine, show
from engine.bench.take import Line, Take, figures
from engine.bench.tasks import prompts_for
from engine.device import detect
from engine.errors import BadRequest
from engine.model import ModelInfo, read_model_info, stem_of
from engine.request import EXPANSIONS, MAX_DRAFT_LENGTH, MODES
from engine.reuse import Reuse
from engine.seeds import cap
from engine.size import size

OWN_CONTEXT = "es"  # the mode that drafts without context alignment
_K_SHARES = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1)  # of the model's k
_CAP_TIMES = (1, 1.5, 2, 2.5, 3, 4)  # times k
_N_CTX = 2048
RELATIVES = "relatives"  # other methods over the same store
_KNOWN = ("3", "4", "8", "9", "10", RELATIVES)  # tables and figures of the paper, and beside them
_TIMED = (
    "tok_s",
    "ratio",
    "ratio_min",
    "ratio_max",
    "tokens_per_pass",
    "acceptance",
    "hits",
    "bytes_per_token",
)

_Takes = Mapping[str, Sequence[Take]]


class _Rows:
    """Names of rows, each with its settings written out, so that one row stands in several figures."""

    def __init__(self, args: Namespace, info: ModelInfo) -> None:
        used, whole = info.n_expert_used, info.n_expert
        self.cap = args.cap or cap(info, "").value
        self._beta, self._k, self._used = args.beta, args.draft_experts, used
        self.k_sweep = sorted({max(1, round(share * used)) for share in _K_SHARES})
        self.cap_sweep = sorted({min(whole, round(times * used)) for times in _CAP_TIMES})

    def drafting(self, expansion: str, k: int | None = None, mode: str = "s2-exact") -> str:
        return f"{mode}:{expansion}@{k or self._k}"

    def leaning(self, cap: int | None = None) -> str:
        return f"s2:priced:cap={cap or self.cap}:beta={self._beta:g}@{self._k}"

    def breakdown(self) -> dict[str, str]:
        """By what a row adds to the one before."""
        rows = {"plain decode": "ar"}
        if OWN_CONTEXT in MODES:
            rows["+ drafts"] = self.drafting("fixed", mode=OWN_CONTEXT)
        rows["+ shared context" if OWN_CONTEXT in MODES else "+ drafts"] = self.drafting("fixed")
        rows["+ expansion"] = self.drafting("priced")
        rows["+ gating"] = self.leaning()
        return rows

    def expansions(self) -> dict[str, str]:
        return {expansion: self.drafting(expansion) for expansion in EXPANSIONS}

    def relatives(self) -> dict[str, str]:
        """Other methods over the same store, by the names their papers gave them. SpecMoE pins experts by a
        profile; here those count as pinned that the policy keeps."""
        return {
            "S2-MoE, exact": self.drafting("priced"),
            "S2-MoE, lossy": f"s2:cap={self.cap}:beta={self._beta:g}@{self._k}",
            "ES": self.drafting("fixed", mode=OWN_CONTEXT),
            "Cascade": self.drafting("cascade", mode="cascade"),
            "EcoSpec": self.drafting("unseen"),
            "SpecMoE": self.drafting("fixed", self._used),
            "MoE-Spec, lossy": f"moe-spec:cap={self.cap}@{self._k}",
        }

    def by_k(self) -> dict[str, str]:
        return {str(k): self.drafting("priced", k) for k in self.k_sweep}

    def by_cap(self) -> dict[str, str]:
        return {str(cap): self.leaning(cap) for cap in self.cap_sweep}


def run(args: Namespace) -> None:
    """Prints a table per figure or table of the paper; with `args.svg` a picture of each figure too."""
    info = read_model_info(args.model)
    if not info.is_moe:
        raise BadRequest(f"{args.model} is a dense model: there is nothing to take apart")
    args.figures = args.figures or list(_KNOWN)
    if unknown := [figure for figure in args.figures if figure not in _KNOWN]:
        raise BadRequest(f"--figures has {unknown[0]}", hint="of " + ", ".join(_KNOWN))
    if not 1 <= args.draft_experts <= info.n_expert_used:
        raise BadRequest(f"--draft-experts is {args.draft_experts}", hint=f"1 to {info.n_expert_used}")
    if not 1 <= args.draft_length <= MAX_DRAFT_LENGTH:
        raise BadRequest(f"--draft-length is {args.draft_length}", hint=f"1 to {MAX_DRAFT_LENGTH}")
    if args.svg is not None:  # measuring takes long, so this is tried before
        try:
            args.svg.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadRequest(f"--svg {args.svg} is no folder: {error.strerror}") from error
    args.threads = args.threads or detect().cores
    budget, rows = limit_of(args, info), _Rows(args, info)
    with interruptible():
        lines = _timed(args, budget, rows)
        if "3" in args.figures and OWN_CONTEXT in MODES:
            lines += _alignment(args, budget, rows)
        if "4" in args.figures:
            lines += _reuse(args, rows)
    for line in lines:
        line.update(bench="ablation", model=stem_of(args.model), budget_bytes=budget)
    if args.json:
        show(lines, as_json=True, foot="")
    else:
        _print(lines)
        print(
            f"{stem_of(args.model)}, {size(info.size_bytes)}, budget {size(budget)}; {args.each} prompts of "
            f"each of {', '.join(args.tasks)}, {args.predict} tokens an answer, "
            f"{args.rounds} alternations; {machine()}"
        )
    if args.svg is not None:
        _draw(lines, args.svg)


def _timed(args: Namespace, budget: int, rows: _Rows) -> list[Line]:
    """Figures 8 to 10 and other methods: all their rows alternate and compare with the same plain decode."""
    wanted = {
        "8": rows.breakdown() if "8" in args.figures else {},
        "9": rows.expansions() if "9" in args.figures else {},
        "10 k'": rows.by_k() if "10" in args.figures else {},
        "10 cap": rows.by_cap() if "10" in args.figures else {},
        RELATIVES: rows.relatives() if RELATIVES in args.figures else {},
    }
    names = list(dict.fromkeys(name for part in wanted.values() for name in part.values()))
    if not names:
        return []
    names = list(dict.fromkeys(["ar", *names]))
    bench = Bench(args, budget, prompts_of(args.model, prompts_for(args.tasks, args.each)))
    takes = bench.alternate(names)
    return [
        {"figure": figure, "what": what, "row": name, **_timing(takes, name), "error": bench.failed.get(name)}
        for figure, part in wanted.items()
        for what, name in part.items()
    ]


def _timing(takes: _Takes, name: str) -> Line:
    measured = figures(takes[name], takes["ar"])
    return {key: measured[key] for key in (*_TIMED, "same_text")}


def _alignment(args: Namespace, budget: int, rows: _Rows) -> list[Line]:
    """Table 3: acceptance of drafts in a context of their own, and in the target's."""
    apart, aligned = rows.drafting("fixed", mode=OWN_CONTEXT), rows.drafting("fixed")
    lines: list[Line] = []
    for task in args.tasks:
        bench = Bench(args, budget, prompts_of(args.model, prompts_for([task], args.each)))
        takes = bench.alternate([apart, aligned])
        before, after = (figures(takes[name], takes[aligned])["acceptance"] for name in (apart, aligned))
        change = after / before - 1 if isinstance(before, float) and isinstance(after, float) else None
        lines.append({"figure": "table 3", "what": task, "own": before, "shared": after, "change": change})
    return lines


def _reuse(args: Namespace, rows: _Rows) -> list[Line]:
    """Table 4: the same answers verified without and with gating, in passes of full length. Which experts are
    asked for does not depend on the budget, so this process takes what it would without one."""
    block, reuse = args.draft_length + 1, Reuse(rows.cap, args.beta)
    lines: list[Line] = []
    with load_here(args.model, n_ctx=_N_CTX, n_threads=args.threads) as session:
        for task in args.tasks:
            told = answers(session, prompts_for([task], args.each), args.predict + 1)
            texts = cut_to(told, args.each * args.predict, block)
            (sums,) = score(session, texts, [(block, reuse)], args.draft_experts)
            if sums.positions:
                lines.append({"figure": "table 4", "what": task, **quality_figures(sums.scores())})
            else:
                print(f"s2chat bench: answers to {task} are shorter than a pass", file=sys.stderr, flush=True)
    return lines


_CAPTIONS = {
    "8": "Figure 8: what each part adds; ratio is to plain decode",
    "9": "Figure 9: drafts accepted / verified against tokens per pass, by what ends a draft",
    "10 k'": "Figure 10: experts of a draft",
    "10 cap": "Figure 10: experts that verify passes prefer",
    RELATIVES: "Other methods over the same store; ratio is to plain decode",
    "table 3": "Table 3: acceptance of drafts in a context of their own and in the target's",
    "table 4": "Table 4: unique experts / (k * positions) without and with gating",
}


def _print(lines: Sequence[Line]) -> None:
    hidden = {"bench", "model", "budget_bytes", "figure"}
    for figure, caption in _CAPTIONS.items():
        part = [line for line in lines if line["figure"] == figure]
        if part:
            empty = {key for key in part[0] if all(line[key] in (None, []) for line in part)}
            brief = [{k: v for k, v in line.items() if k not in hidden | empty} for line in part]
            print(caption)
            show(brief, as_json=False, foot="")


def _draw(lines: Sequence[Line], folder: Path) -> None:
    """One file per figure whose rows ran."""

    def values(figure: str, *keys: str) -> dict[str, list[float]]:
        """By what a row is: its values of `keys`, where it has all of them."""
        found = {str(line["what"]): [line[key] for key in keys] for line in lines if line["figure"] == figure}
        return {what: [float(v) for v in row] for what, row in found.items() if None not in row}  # type: ignore[arg-type]

    def sweep(figure: str, label: str) -> Callable[[], str]:
        rows = values(figure, "ratio", "tokens_per_pass")
        series = {
            name: [(float(what), row[i]) for what, row in rows.items()]
            for i, name in enumerate(("speed / plain decode", "tokens per pass"))
        }
        return lambda: points(_CAPTIONS[figure], label, "", series, joined=True)

    spread = {what: [(row[0], row[1])] for what, row in values("9", "tokens_per_pass", "acceptance").items()}
    drawings: dict[str, tuple[str, Callable[[], str]]] = {
        "figure-8": (
            "8",
            lambda: bars(_CAPTIONS["8"], {what: row[0] for what, row in values("8", "ratio").items()}),
        ),
        "figure-9": (
            "9",
            lambda: points(_CAPTIONS["9"], "tokens per pass", "acceptance", spread, joined=False),
        ),
        "figure-10-draft-experts": ("10 k'", sweep("10 k'", "experts of a draft")),
        "figure-10-cap": ("10 cap", sweep("10 cap", "cap")),
    }
    for name, (figure, drawing) in drawings.items():
        if values(figure, "ratio"):
            (folder / f"{name}.svg").write_text(drawing(), encoding="utf-8")
