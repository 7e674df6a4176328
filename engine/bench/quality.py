"""`bench quality`: what reuse-aware gating saves, and what it does to the model (S2-MoE, Table 2).

Without --tasks a text is read in verify passes that lean and in the same passes unbiased; with it, questions
are answered in `ar` and in `s2`.
"""

from __future__ import annotations

import math
import time
from argparse import Namespace
from collections.abc import Iterable, Sequence

from engine.bench.interrupt import interruptible
from engine.bench.loading import load_here
from engine.bench.quality_items import compare
from engine.bench.quality_score import Reading, Scores, Sums
from engine.bench.quality_text import Document, documents
from engine.bench.report import machine, show
from engine.bench.take import Line
from engine.errors import BadRequest
from engine.model import ModelInfo, read_model_info, stem_of
from engine.reuse import Reuse
from engine.session import Session
from engine.timeline import ROWS_EXACT

#: What the paper's models keep: Table 4 (reuse), Table 2 (the others).
REUSE_DOWN, TOP1, PPL_RATIO = 0.26, 0.89, 1.013
_CAPS = (1.5, 2.0, 2.5)  # times k: the paper's moderate range
_N_CTX = 2048

Setting = tuple[int, Reuse]  # positions of a pass, and how it leans


def run(args: Namespace) -> None:
    """Prints a row for each (block, cap, beta), or one for each kind of question."""
    info = read_model_info(args.model)
    reuses = [Reuse(cap, beta, args.by_prefix) for cap in _caps(info, args) for beta in args.beta]
    started = time.perf_counter()
    with interruptible(), load_here(args.model, n_ctx=_N_CTX, n_threads=args.threads) as session:
        if not session.can_draft:
            raise BadRequest(f"{info.arch} cannot roll drafts back, so it has no verify passes")
        if args.tasks:
            lines = compare(session, args, reuses[0])
        else:
            lines = _read(session, args, [(block, reuse) for block in args.block for reuse in reuses])
    foot = f"{stem_of(args.model)}, {time.perf_counter() - started:.0f} s; {machine()}"
    if args.json or args.tasks:
        show(lines, as_json=args.json, foot=foot)
    else:
        show([_brief(line) for line in lines], as_json=False, foot=f"{foot}\n{_LEGEND}")


def score(
    session: Session, texts: Iterable[Document], settings: Sequence[Setting], draft_experts: int
) -> list[Sums]:
    """Reads every one of `texts` in each of `settings`, whose widths divide its positions."""
    sums = [Sums() for _ in settings]
    width = max(block for block, _ in settings)
    for text in texts:
        reading = Reading(session, text, width)
        for total, (block, reuse) in zip(sums, settings, strict=True):
            total.add(reading.score(block, reuse, draft_experts))
    return sums


def figures(scores: Scores) -> Line:
    """The measured fields of a row. `held`: of the bars, those that are kept."""
    held = {
        "reuse": scores.reuse_change <= -REUSE_DOWN,
        "top1": scores.top1 >= TOP1,
        "ppl": scores.ppl_ratio <= PPL_RATIO,
    }
    return {
        "positions": scores.positions,
        "ppl": scores.ppl,
        "mean_kl": scores.mean_kl,
        "rms_dp": scores.rms_dp,
        "top1": scores.top1,
        "ppl_ratio": scores.ppl_ratio,
        "reuse_plain": scores.reuse_plain,
        "reuse": scores.reuse,
        "reuse_change": scores.reuse_change,
        "held": [name for name, kept in held.items() if kept],
    }


def _caps(info: ModelInfo, args: Namespace) -> list[int]:
    """Those asked for, or the paper's range. Raises BadRequest where the model cannot have them."""
    if not info.is_moe:
        raise BadRequest(f"{info.path.name} is a dense model: it has no experts to reuse")
    used, whole = info.n_expert_used, info.n_expert
    if not 1 <= args.draft_experts <= used:
        raise BadRequest(f"--draft-experts is {args.draft_experts}", hint=f"1 to {used}")
    wrong = [cap for cap in args.cap or () if not used <= cap <= whole]
    if wrong:
        raise BadRequest(f"--cap is {wrong[0]}", hint=f"{used} to {whole}")
    return list(args.cap or sorted({min(whole, round(times * used)) for times in _CAPS}))


def _read(session: Session, args: Namespace, settings: Sequence[Setting]) -> list[Line]:
    wrong = [block for block in args.block if not 2 <= block <= ROWS_EXACT]
    if wrong:
        raise BadRequest(f"--block is {wrong[0]}", hint=f"2 to {ROWS_EXACT}")
    texts = documents(session, args.text, args.positions, math.lcm(*args.block))
    sums = score(session, texts, settings, args.draft_experts)
    if not sums[0].positions:
        raise BadRequest("the text is too short for one pass", hint="give --text another")
    return [
        {
            "bench": "quality",
            "model": stem_of(args.model),
            "text": args.text,
            "block": block,
            "cap": reuse.cap,
            "beta": reuse.beta,
            **figures(total.scores()),
        }
        for (block, reuse), total in zip(settings, sums, strict=True)
    ]


_LEGEND = (
    "KL: nats, mean. dp: root mean square of the change in the next token's probability. top1: positions\n"
    "with the same likeliest token. reuse: unique experts / (k * positions) of a pass. held: of the paper's\n"
    f"bars (reuse down by {REUSE_DOWN:.0%}, top1 {TOP1:.0%} at least, ppl ratio {PPL_RATIO} at most), those "
    "kept."
)


def _brief(line: Line) -> Line:
    """What a person looks at."""

    def number(name: str, digits: str) -> str:
        return format(line[name], digits)

    held = line["held"]
    assert isinstance(held, list)
    return {
        "block": line["block"],
        "cap": line["cap"],
        "beta": number("beta", "g"),
        "positions": line["positions"],
        "ppl": number("ppl", ".2f"),
        "KL": number("mean_kl", ".4f"),
        "dp": number("rms_dp", ".2%"),
        "top1": number("top1", ".2%"),
        "ppl ratio": number("ppl_ratio", ".4f"),
        "reuse": f"{line['reuse_plain']:.3f} → {line['reuse']:.3f}",
        "change": number("reuse_change", "+.1%"),
        "held": " ".join(held) or "–",
    }
