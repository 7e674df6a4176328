"""`bench widths`: does a row's result depend on how many rows stand beside it in a pass?

Speculation is exact where it does not. On the CPU the promise is to the bit; on a GPU, whose kernels are
chosen by the number of rows, this says how close the modes marked ≈ are.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from engine.bench.loading import load_here
from engine.bench.quality_score import log_softmax, logits_of_rows, prefill
from engine.bench.quality_text import Document, documents
from engine.bench.report import machine, show
from engine.errors import BadRequest
from engine.model import stem_of
from engine.request import MAX_DRAFT_LENGTH
from engine.session import Session

Array = npt.NDArray[np.float32]
WIDEST = MAX_DRAFT_LENGTH + 1


def run(args: Namespace) -> None:
    """Prints, for each width, how the logits of its passes compare with those of passes of one row."""
    if unknown := [width for width in args.widths if width > WIDEST]:
        raise BadRequest(f"--widths has {unknown[0]}", hint=f"passes have {WIDEST} rows at most")
    with load_here(args.model, n_threads=args.threads) as session:
        read = [
            _compare(session, text, args.widths) for text in documents(session, args.text, args.positions, 1)
        ]
        where = session.plan.reasons["gpu_layers"]
        on_gpu = not session.exact
    rows = [
        {"bench": "widths", "width": width, "model": stem_of(args.model), "on_gpu": on_gpu, **_merged(found)}
        for width, found in zip(args.widths, zip(*read, strict=True), strict=True)
    ]
    show(rows, as_json=args.json, foot=f"{stem_of(args.model)} ({where}); {machine()}")


def _compare(session: Session, text: Document, widths: list[int]) -> list[dict[str, float]]:
    prefill(session, text)
    alone = np.concatenate(list(_passes(session, text, 1)))
    return [_differences(alone, np.concatenate(list(_passes(session, text, width)))) for width in widths]


def _passes(session: Session, text: Document, width: int) -> Iterator[Array]:
    """The logits F32 [rows, vocabulary] of passes of `width` rows over the positions of `text`."""
    session.rewind(text.start)
    end = text.start + text.positions
    for at in range(text.start, end, width):
        rows = text.tokens[at : min(at + width, end)]
        session.decode(rows, at, all_logits=True)
        session.keep(rows)
        yield logits_of_rows(session, len(rows))


def _differences(alone: Array, together: Array) -> dict[str, float]:
    """Sums over the positions of [positions, vocabulary], and the largest difference of a logit."""
    before, after = log_softmax(alone), log_softmax(together)
    return {
        "positions": len(alone),
        "same_bits": int((alone.view(np.uint32) == together.view(np.uint32)).all(axis=1).sum()),
        "same_top": int((alone.argmax(axis=1) == together.argmax(axis=1)).sum()),
        "kl": float((np.exp(before) * (before - after)).sum(dtype=np.float64)),
        "largest": float(np.abs(alone - together).max()),
    }


def _merged(found: tuple[dict[str, float], ...]) -> dict[str, float]:
    count = sum(each["positions"] for each in found)
    means = {name: sum(each[name] for each in found) / count for name in ("same_bits", "same_top", "kl")}
    return {"positions": count, **means, "largest": max(each["largest"] for each in found)}
