"""Questions answered in `ar` and in `s2`: how many rightly, and what changed (S2-MoE, Table 2)."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from engine.bench.quality_text import answer_to
from engine.bench.take import Line
from engine.bench.tasks_items import OWN, Item, read_items
from engine.chat import Message
from engine.model import stem_of
from engine.request import Speculation
from engine.reuse import Reuse
from engine.session import Session


def compare(session: Session, args: Namespace, reuse: Reuse) -> list[Line]:
    """A row per kind of question and one for all.

    Every block drafts as far as it may: where drafts are left out, nothing leans.
    """
    items = read_items(OWN if args.tasks == "own" else Path(args.tasks))
    plain = Speculation("ar")
    leaning = Speculation(
        "s2",
        args.draft_experts,
        max(args.block) - 1,
        "fixed",
        cap=reuse.cap,
        beta=reuse.beta,
        by_prefix=reuse.by_prefix,
    )
    judged = [(item, _is_right(session, item, plain), _is_right(session, item, leaning)) for item in items]
    kinds = list(dict.fromkeys(item.kind for item in items))
    rows = [(kind, [both for item, *both in judged if item.kind == kind]) for kind in kinds]
    rows.append(("all", [both for _, *both in judged]))
    return [
        {
            "bench": "quality",
            "model": stem_of(args.model),
            "kind": kind,
            "block": max(args.block),
            "cap": reuse.cap,
            "beta": reuse.beta,
            "items": len(pairs),
            "ar": 100 * sum(before for before, _ in pairs) / len(pairs),
            "s2": 100 * sum(after for _, after in pairs) / len(pairs),
            "points": 100 * sum(after - before for before, after in pairs) / len(pairs),
            "lost": sum(before and not after for before, after in pairs),
            "won": sum(after and not before for before, after in pairs),
        }
        for kind, pairs in rows
    ]


def _is_right(session: Session, item: Item, speculation: Speculation) -> bool:
    prompt = session.dialogue.tokenize_chat([Message("user", item.question)])
    return item.is_right(answer_to(session, prompt, speculation, item.tokens)[1])
