"""`s2chat bench ui`: how quick and how small the interface is, on a terminal of its own."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from app.bench import measures, prose
from engine.bench.number import number
from engine.bench.report import machine, show

HELP = "the interface on a real terminal: keys while an answer streams, memory, opening, starting"


def add_flags(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "--tokens", type=number, default=8000, metavar="N", help="of the answer (default: 8000)"
    )
    bench.add_argument("--rate", type=number, default=60, metavar="N", help="tokens a second (default: 60)")
    bench.add_argument(
        "--messages", type=number, default=2000, metavar="N", help="of the chat to open (default: 2000)"
    )
    bench.add_argument("-r", "--rounds", type=number, default=5, metavar="N", help="default: 5")
    bench.add_argument("--json", action="store_true", help="one JSON object per measure")


def run(args: argparse.Namespace) -> None:
    """Prints each measure with its bar. The model is played; every core but one is kept busy while it is."""
    spinners = max(1, len(os.sched_getaffinity(0)) - 1)
    found: list[measures.Measure] = []
    with tempfile.TemporaryDirectory(prefix="s2b-") as home:
        found.append(measures.start(Path(home), args.rounds))
        tokens = prose.tokens(args.tokens)
        found += measures.streaming(Path(home), tokens, args.rate, spinners)
    with tempfile.TemporaryDirectory(prefix="s2b-") as home:
        found.append(measures.opening(Path(home), args.messages, args.rounds))
    show([measure.as_row() for measure in found], as_json=args.json, foot=machine())
