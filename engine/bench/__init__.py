"""Measurements: each a ratio from one alternating run, printed as a table or as JSON lines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from engine.errors import S2Error

_EMBEDDED = Path(__file__).parents[2] / "assets" / "smolmoe-32x8.gguf"


def main(argv: Sequence[str]) -> int:
    """Runs `s2chat bench ARGV`; returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    from engine.bench import decode, overhead, stream

    run = {"decode": decode.run, "overhead": overhead.run, "stream": stream.run}[args.bench]
    try:
        run(args)
    except S2Error as error:
        parser.exit(1, f"s2chat bench: {error.line()}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-m", "--model", type=Path, default=_EMBEDDED, metavar="FILE", help="the model")
    common.add_argument("-t", "--threads", type=int, metavar="N", help="threads (default: one per core)")
    common.add_argument("-n", "--predict", type=int, default=128, metavar="N", help="tokens per answer")
    common.add_argument("-r", "--rounds", type=int, default=5, metavar="N", help="alternations")
    common.add_argument("--draft-experts", type=int, default=2, metavar="K")
    common.add_argument("--draft-length", type=int, default=4, metavar="N")
    common.add_argument("--json", action="store_true", help="one JSON object per row")
    parser = argparse.ArgumentParser(prog="s2chat bench", description=__doc__)
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    decode = benches.add_parser("decode", parents=[common], help="prefill and decode speed, row against row")
    decode.add_argument(
        "--rows",
        default="stock,ar,s2-exact",
        help="rows to alternate, the first is the yardstick (stock = llama.cpp as it comes)",
    )
    decode.add_argument("-p", "--prompt", type=int, default=512, metavar="N", help="tokens in the prompt")
    benches.add_parser("overhead", parents=[common], help="Python's share of a block's time")
    benches.add_parser("stream", parents=[common], help="what the engine process and the UI cost")
    return parser
