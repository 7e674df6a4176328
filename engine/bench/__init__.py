"""Measurements: each a ratio from one alternating run, printed as a table or as JSON lines."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from engine.errors import S2Error

_EMBEDDED = Path(__file__).parents[2] / "assets" / "smolmoe-32x8.gguf"


def main(argv: Sequence[str]) -> int:
    """Runs `s2chat bench ARGV`; returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    from engine.bench import decode, kernels, large, overhead, stream

    benches = {
        "decode": decode,
        "kernels": kernels,
        "large": large,
        "overhead": overhead,
        "stream": stream,
    }
    run = benches[args.bench].run
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
    _add_kernels(benches.add_parser("kernels", help="what matrix kernels need for several rows against one"))
    _add_large(
        benches.add_parser("large", help="make a large model with the text of a small one, to measure with")
    )
    return parser


def _add_kernels(kernels: argparse.ArgumentParser) -> None:
    kernels.add_argument("--types", metavar="LIST", help="types of weights (default: Q4_0,Q4_K,Q8_0)")
    kernels.add_argument("--kinds", default="dense,expert", metavar="LIST", help="default: dense,expert")
    kernels.add_argument(
        "--rows", type=_numbers, default=[1, 2, 4, 8], metavar="LIST", help="default: 1,2,4,8"
    )
    kernels.add_argument("-t", "--threads", type=int, metavar="N", help="threads (default: one per core)")
    kernels.add_argument("-r", "--rounds", type=int, default=15, metavar="N", help="alternations")
    kernels.add_argument("--no-stock", dest="stock", action="store_false", help="leave stock llama.cpp out")
    kernels.add_argument(
        "--check", action="store_true", help="compare bits instead of times (default: all types)"
    )
    kernels.add_argument("--json", action="store_true", help="one JSON object per row")


def _add_large(large: argparse.ArgumentParser) -> None:
    large.add_argument(
        "--bytes", type=_size, required=True, metavar="SIZE", help="least size of the result: 4G, 1.5G, 200M"
    )
    large.add_argument(
        "-m", "--model", type=Path, default=_EMBEDDED, metavar="FILE", help="the MoE model to widen"
    )
    large.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="where it goes (default: a cache, from where it is taken the next time)",
    )
    large.add_argument("--seed", type=_seed, default=0, metavar="N", help="of the random bits (default: 0)")
    large.add_argument("--json", action="store_true", help="one JSON object")


def _size(text: str) -> int:
    """A number of bytes; K, M and G are powers of 1024."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)([KMG]?)", text.upper())
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as 4G, 1.5G or 200M")
    unit = 1 << 10 * " KMG".index(match[2] or " ")
    return math.ceil(Fraction(match[1]) * unit)


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up")
    return int(text)


def _numbers(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers from 1 up")
    return [int(word) for word in words]
