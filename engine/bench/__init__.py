"""Measurements: each a ratio from one alternating run, printed as a table or as JSON lines."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.bench.number import number
from engine.budget import Budget, parse_budget
from engine.errors import BadRequest, Busy, S2Error
from engine.paths import EMBEDDED_MODEL
from engine.request import BETA, Sampling
from engine.size import parse_size

_TIMED = ("ablation", "calibrate", "decode", "fit", "kernels", "overhead", "stream")


@dataclass(frozen=True, slots=True)
class Bench:
    """One that another part of the program brings along."""

    help: str
    add_flags: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def main(argv: Sequence[str], others: Mapping[str, Bench] | None = None) -> int:
    """Runs `s2chat bench ARGV`, one of ours or of `others`; returns the exit code."""
    others = others or {}
    parser = _parser(others)
    args = parser.parse_args(argv)
    from engine.bench import (
        ablation,
        calibrate,
        decode,
        fit,
        kernels,
        large,
        overhead,
        quality,
        replay,
        soak,
        stream,
        widths,
    )

    benches = {
        "ablation": ablation,
        "calibrate": calibrate,
        "decode": decode,
        "fit": fit,
        "kernels": kernels,
        "large": large,
        "overhead": overhead,
        "quality": quality,
        "replay": replay,
        "soak": soak,
        "stream": stream,
        "widths": widths,
    }
    run = others[args.bench].run if args.bench in others else benches[args.bench].run
    try:
        if args.bench in _TIMED:
            _refuse_beside_a_model()
        run(args)
    except S2Error as error:
        parser.exit(2 if isinstance(error, BadRequest) else 1, f"s2chat bench: {error.line()}\n")
    return 0


def _parser(others: Mapping[str, Bench]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="s2chat bench", description=__doc__)
    benches = parser.add_subparsers(dest="bench", required=True, metavar="BENCH")
    _add_decode(
        benches.add_parser(
            "decode",
            help="prefill and decode speed, row against row; with --budget, where memory is short",
            epilog=_DECODE_NOTES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    _add_ablation(
        benches.add_parser("ablation", help="what each part of the method brings where memory is short")
    )
    calibrate = benches.add_parser("calibrate", help="predicted cost of passes against what they took")
    _add_common(calibrate, 64)
    _add_budget(calibrate)
    _add_common(benches.add_parser("overhead", help="Python's share of a block's time"))
    _add_common(benches.add_parser("stream", help="what the engine process and the UI cost"))
    _add_quality(
        benches.add_parser(
            "quality",
            help="what reuse-aware gating saves, and what it does to the model's opinion or its answers",
            epilog=_QUALITY_NOTES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    _add_fit(
        benches.add_parser(
            "fit", help="does a model start without a flag in 2G and 4G, and take what was planned?"
        )
    )
    _add_kernels(benches.add_parser("kernels", help="what matrix kernels need for several rows against one"))
    _add_large(
        benches.add_parser("large", help="make a large model with the text of a small one, to measure with")
    )
    replay = benches.add_parser("replay", help="which experts to keep in memory: policies on real routing")
    replay.add_argument("--json", action="store_true", help="one JSON object per row")
    soak = benches.add_parser(
        "soak",
        help="several clients, cancels, budgets and kills for as long as one likes: do texts stay right?",
    )
    soak.add_argument("--minutes", type=float, default=60, metavar="N", help="default: 60")
    soak.add_argument("--clients", type=number, default=3, metavar="N", help="default: 3")
    _add_model(soak)
    soak.add_argument("--seed", type=_seed, default=0, metavar="N", help="of what happens when (default: 0)")
    soak.add_argument("--json", action="store_true", help="one JSON object")
    _add_widths(
        benches.add_parser(
            "widths",
            help="do a row's logits depend on the rows beside it? Exact modes rest on that they do not",
        )
    )
    for name, other in others.items():
        other.add_flags(benches.add_parser(name, help=other.help))
    return parser


def _refuse_beside_a_model() -> None:
    """Two models at once would measure each other."""
    from engine.launcher import find_engine
    from engine.paths import Paths

    handle = find_engine(Paths.default())
    if handle is not None and handle.hello.model in ("ready", "loading"):
        raise Busy(
            f"an engine (process {handle.hello.pid}) has a model loaded, which would spoil the numbers",
            hint="close the chat, or `s2chat stop`",
        )


def _add_model(bench: argparse.ArgumentParser) -> None:
    bench.add_argument("-m", "--model", type=Path, default=EMBEDDED_MODEL, metavar="FILE", help="the model")
    bench.add_argument("-t", "--threads", type=number, metavar="N", help="threads (default: one per core)")


def _add_text(bench: argparse.ArgumentParser, text: str, positions: int) -> None:
    bench.add_argument(
        "--text", default=text, metavar="TEXT", help=f"of answers, asked, prose; or a FILE (default: {text})"
    )
    bench.add_argument(
        "--positions",
        type=number,
        default=positions,
        metavar="N",
        help=f"to read, at most (default: {positions})",
    )


def _add_common(bench: argparse.ArgumentParser, predict: int | None = 128, predict_help: str = "") -> None:
    _add_model(bench)
    bench.add_argument(
        "-n",
        "--predict",
        type=number,
        default=predict,
        metavar="N",
        help="tokens per answer " + (predict_help or f"(default: {predict})"),
    )
    bench.add_argument(
        "-r", "--rounds", type=number, default=5, metavar="N", help="alternations (default: 5)"
    )
    bench.add_argument("--draft-experts", type=int, default=2, metavar="K")
    bench.add_argument("--draft-length", type=int, default=4, metavar="N")
    bench.add_argument("--json", action="store_true", help="one JSON object per row")


_DECODE_NOTES = """\
Without --budget the rows are stock and the modes, all in memory, and answer one prompt of -p tokens.

With --budget SIZE the rows are
  stock    llama.cpp from the mapped file, not repacked (our library with nothing switched on: the same bits)
  ar       plain decode with the expert store
  ar-sync  the same without overlap and prefetch; other modes and their -sync likewise
Behind a mode may stand what decides how far it drafts: s2-exact:fixed, :confidence, :utility (the paper's),
:unseen (EcoSpec's), :tree (priced, with siblings), or :priced, which is what a chat uses; and :length=8,
:cap=16, :beta=0.5. How many experts draft stands behind all that: s2-exact@1, s2:fixed:cap=12@2.
Every run is a process of its own that loads the model, warms up and answers three chat prompts; the kernel's
copies of the model's files are dropped before it. A row that runs out of memory is reported as such. JSON
fields: *_mb_s in 10^6 bytes per second; hits (in memory) and late (on their way) as shares of the experts
asked for; prefetched as a share of the bytes, prefetch_used of what was prefetched; tokens and major_faults
of a run. All but prefill_tok_s leave prompts out.
"""


def _add_decode(decode: argparse.ArgumentParser) -> None:
    _add_common(decode, None, "(default: 128; 16 with --budget)")
    decode.add_argument(
        "--rows",
        metavar="LIST",
        help="rows to alternate, the first is the yardstick "
        "(default: stock,ar,s2-exact; stock,ar-sync,ar with --budget)",
    )
    decode.add_argument(
        "--temp",
        type=_temperature,
        default=0.0,
        metavar="T",
        help="of what is drawn (default: 0, as stock does)",
    )
    _add_tasks(decode, "instead of one text, or of three prompts with --budget")
    decode.add_argument(
        "-p", "--prompt", type=number, metavar="N", help="tokens in the prompt (default: 512)"
    )
    _add_budget(decode)
    _add_runs(decode)


def _add_runs(bench: argparse.ArgumentParser) -> None:
    """What processes under a budget are told."""
    bench.add_argument(
        "--cgroup",
        action="store_true",
        help="each process in a memory cgroup of the budget and 2 %%, where the file's pages count too",
    )
    bench.add_argument(
        "--warm", type=number, default=16, metavar="N", help="tokens to warm up with, --budget (default: 16)"
    )
    bench.add_argument(
        "--seconds",
        type=number,
        default=60,
        metavar="N",
        help="no more decoding than that is measured in a run, --budget (default: 60)",
    )


def _add_ablation(ablation: argparse.ArgumentParser) -> None:
    _add_common(ablation, 32)
    _add_budget(ablation)
    _add_runs(ablation)
    _add_tasks(ablation, "(default: MT,MA,HE)")
    ablation.add_argument("--cap", type=number, metavar="N", help="experts to prefer (default: as in a chat)")
    ablation.add_argument(
        "--beta", type=_beta, default=BETA, metavar="X", help=f"how far to lean (default: {BETA})"
    )
    ablation.add_argument(
        "--figures",
        type=lambda text: text.split(","),
        metavar="LIST",
        help="of the paper: tables 3 and 4, figures 8, 9 and 10; relatives: other methods (default: all)",
    )
    ablation.add_argument("--svg", type=Path, metavar="FOLDER", help="draw the figures there")
    ablation.set_defaults(tasks=["MT", "MA", "HE"], each=2, rounds=3, draft_length=8, temp=0.0)


def _add_tasks(bench: argparse.ArgumentParser, instead: str) -> None:
    bench.add_argument(
        "--tasks",
        type=_tasks,
        metavar="LIST",
        help=f"our prompts for tasks of the paper, of MT,RG,SU,TR,QA,MA,HE, {instead}",
    )
    bench.add_argument(
        "--each", type=number, metavar="N", help="prompts of each task, at most (default: 12, all)"
    )


_QUALITY_NOTES = """\
A text is read in verify passes that lean, as in mode s2, and in the same passes unbiased; a draft with k'
experts says how sure it is of each token. The text is given, so nothing is drawn and all tokens are accepted.
Texts: answers (the model's own, greedy, to our prompts), asked (those prompts), prose (ours); several with
commas between them; or a FILE in UTF-8. Of its own answers nothing is likelier to a model than to itself, so
there the ppl ratio shows all that changes (it is about exp(KL)); of what people wrote a change makes some
tokens likelier, too. The paper's bar is for what people wrote.

With --tasks questions are answered greedily, in ar and in s2 at the first cap and beta and of passes of the
largest block. A FILE has a JSON object per line:
  question   what the model is asked                    kind      a word; each kind has a row
  accept     a regular expression that is found somewhere in a right answer, whatever the case; or
  check      Python that runs behind the answer's code and raises where it is wrong
  before     Python that runs before the answer's code (optional)
  tokens     of the answer, at most (optional: 32, with a check 128)
Code runs in an isolated Python of its own without network, files to write, or other programs; it has 5
seconds and 512 MiB.
"""


def _add_quality(quality: argparse.ArgumentParser) -> None:
    _add_model(quality)
    quality.add_argument(
        "--cap", type=_numbers, metavar="LIST", help="experts to prefer (default: 1.5, 2 and 2.5 times k)"
    )
    quality.add_argument(
        "--beta", type=_betas, default=[0.5, 1.0], metavar="LIST", help="how far to lean (default: 0.5,1)"
    )
    quality.add_argument(
        "--block", type=_numbers, default=[4, 8], metavar="LIST", help="positions of a pass (default: 4,8)"
    )
    quality.add_argument(
        "--by-prefix", action="store_true", help="a token counts by the chance of all before it as well"
    )
    quality.add_argument("--draft-experts", type=int, default=2, metavar="K")
    _add_text(quality, "answers,asked,prose", 2000)
    quality.add_argument(
        "--tasks",
        nargs="?",
        const="own",
        metavar="FILE",
        help="answer questions instead, ours or those in FILE (format below)",
    )
    quality.add_argument("--json", action="store_true", help="one JSON object per row")


def _add_budget(bench: argparse.ArgumentParser) -> None:
    bench.add_argument(
        "--budget",
        type=_budget,
        metavar="SIZE",
        help="memory of a row's process: 3G, 1500M, 25%% of the files",
    )


def _add_fit(fit: argparse.ArgumentParser) -> None:
    fit.add_argument(
        "-m",
        "--model",
        dest="models",
        type=Path,
        nargs="+",
        default=[EMBEDDED_MODEL],
        metavar="FILE",
        help="models (default: the embedded one)",
    )
    fit.add_argument(
        "--limits",
        type=_sizes,
        default=[2 << 30, 4 << 30, 0],
        metavar="LIST",
        help="memory of a row's cgroup, none for no limit (default: 2G,4G,none)",
    )
    fit.add_argument("-n", "--predict", type=number, default=128, metavar="N", help="tokens (default: 128)")
    fit.add_argument(
        "--sweep",
        type=number,
        nargs="?",
        const=64,
        default=0,
        metavar="N",
        help="also answers of N tokens (64) in auto and in every exact mode set by hand, in three budgets",
    )
    fit.add_argument("--json", action="store_true", help="one JSON object per row")


def _add_kernels(kernels: argparse.ArgumentParser) -> None:
    kernels.add_argument("--types", metavar="LIST", help="types of weights (default: Q4_0,Q4_K,Q8_0)")
    kernels.add_argument("--kinds", default="dense,expert", metavar="LIST", help="default: dense,expert")
    kernels.add_argument(
        "--rows", type=_numbers, default=[1, 2, 4, 8], metavar="LIST", help="default: 1,2,4,8"
    )
    kernels.add_argument("-t", "--threads", type=number, metavar="N", help="threads (default: one per core)")
    kernels.add_argument("-r", "--rounds", type=number, default=15, metavar="N", help="alternations")
    kernels.add_argument("--no-stock", dest="stock", action="store_false", help="leave stock llama.cpp out")
    kernels.add_argument(
        "--check", action="store_true", help="compare bits instead of times (default: all types)"
    )
    kernels.add_argument("--json", action="store_true", help="one JSON object per row")


def _add_large(large: argparse.ArgumentParser) -> None:
    large.add_argument(
        "--bytes",
        type=_size,
        required=True,
        metavar="SIZE",
        help="least size of the result: 4G, 1.5G, 200M, 1T",
    )
    large.add_argument(
        "-m", "--model", type=Path, default=EMBEDDED_MODEL, metavar="FILE", help="the MoE model to widen"
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


def _add_widths(widths: argparse.ArgumentParser) -> None:
    _add_model(widths)
    widths.add_argument(
        "--widths", type=_numbers, default=[2, 3, 4, 8, 16, 32], metavar="LIST", help="default: 2,3,4,8,16,32"
    )
    _add_text(widths, "answers", 256)
    widths.add_argument("--json", action="store_true", help="one JSON object per row")


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except BadRequest as error:
        units = "units are K, M, G and T, powers of 1024"
        raise argparse.ArgumentTypeError(f"{error.message}: {error.hint}; {units}") from None


def _sizes(text: str) -> list[int]:
    return [0 if word == "none" else _size(word) for word in text.split(",")]


def _budget(text: str) -> Budget:
    try:
        return parse_budget(text)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(error.line()) from None


def _tasks(text: str) -> list[str]:
    from engine.bench.tasks import tasks_of

    try:
        return tasks_of(text)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(error.line()) from None


def _temperature(text: str) -> float:
    try:
        return Sampling(temperature=float(text)).temperature
    except (ValueError, BadRequest):
        raise argparse.ArgumentTypeError(f"{text!r} is no temperature from 0 to 100") from None


def _beta(text: str) -> float:
    try:
        beta = float(text)
    except ValueError:
        beta = -1.0
    if not 0 <= beta <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 100")
    return beta


def _betas(text: str) -> list[float]:
    return [_beta(word) for word in text.split(",")]


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 up")
    return int(text)


def _numbers(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers from 1 up")
    return [int(word) for word in words]
