"""`bench decode`: prefill and decode speed of stock llama.cpp and of our modes, alternating."""

from __future__ import annotations

import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from statistics import median

from engine.bench import budget
from engine.bench.prompts import prompts_of
from engine.bench.report import machine, ratio, show
from engine.bench.row import Figures, Row
from engine.bench.rowname import NO_STORE, STOCK, RowName, check_temperature, heat_words
from engine.bench.take import Line
from engine.bench.tasks import prompts_for
from engine.device import detect
from engine.errors import BadRequest, NativeError
from engine.model import stem_of
from engine.request import MODES

_DEFAULT_ROWS, _DEFAULT_PROMPT, _DEFAULT_TOKENS = "stock,ar,s2-exact", 512, 128
_BUILDER = Path(__file__).parents[2] / "packaging" / "native.py"


def run(args: Namespace) -> None:
    """Alternates the rows `args.rounds` times and prints medians and ratios to the first row."""
    check_temperature((args.rows or _DEFAULT_ROWS).split(","), args.temp)
    if args.budget is not None:
        budget.run(args)
        return
    if args.cgroup:
        raise BadRequest("--cgroup has no size without --budget", hint="give both")
    args.predict = args.predict or _DEFAULT_TOKENS
    asked = _prompts(args)
    names = [RowName.parse(name, NO_STORE) for name in (args.rows or _DEFAULT_ROWS).split(",")]
    args.threads = args.threads or detect().cores
    rows = [
        Row(name.text, args, args.prompt, stock_library() if name.text == STOCK else None) for name in names
    ]
    try:
        for row in rows:
            row.run()  # pages, caches and clocks warm up
        table = [line for task, prompts in asked.items() for line in _table(args, names, rows, task, prompts)]
    finally:
        for row in rows:
            row.close()
    what = (
        f"{args.prompt} + {args.predict} tokens" if args.tasks is None else f"{args.predict} tokens an answer"
    )
    foot = f"{stem_of(args.model)}, {what}{heat_words(args)}, {args.threads} threads, "
    show(table, as_json=args.json, foot=foot + f"median of {args.rounds} alternations; {machine()}")


def _prompts(args: Namespace) -> dict[str, list[tuple[int, ...]] | None]:
    """What is asked, by task; without tasks a text of `args.prompt` tokens. Sets `args.prompt` to the
    longest."""
    if args.tasks is None:
        args.prompt = args.prompt or _DEFAULT_PROMPT
        return {"": None}
    if args.prompt is not None:
        raise BadRequest("-p is for one text: the prompts of tasks are given", hint="leave it out")
    asked = {task: prompts_of(args.model, prompts_for([task], args.each))[1:] for task in args.tasks}
    args.prompt = max(len(prompt) for prompts in asked.values() for prompt in prompts)
    return {**asked}


def _table(
    args: Namespace,
    names: list[RowName],
    rows: list[Row],
    task: str,
    prompts: list[tuple[int, ...]] | None,
) -> list[Line]:
    rounds = [[row.run(prompts) for row in rows] for _ in range(args.rounds)]
    columns = [list(column) for column in zip(*rounds, strict=True)]
    return [
        {**_line(args, name, column, columns[0], names[0].text), **({"task": task} if task else {})}
        for name, column in zip(names, columns, strict=True)
    ]


def _line(args: Namespace, name: RowName, mine: list[Figures], first: list[Figures], first_name: str) -> Line:
    def values(figures: list[Figures], key: str) -> list[float]:
        return [float(figure[key]) for figure in figures]

    line: Line = {
        "bench": "decode",
        "row": name.text,
        "mode": name.mode,
        "exact": MODES[name.mode].exact,
        "model": stem_of(args.model),
        "tokens": args.predict,
        "tok_s": median(values(mine, "tok_s")),
        "ratio": ratio(values(mine, "tok_s"), values(first, "tok_s")),
        "prefill_tok_s": median(values(mine, "prefill_tok_s")),
        "prefill_ratio": ratio(values(mine, "prefill_tok_s"), values(first, "prefill_tok_s")),
        "ratio_to": first_name,
        "acceptance": mine[0].get("acceptance"),
        "tokens_per_pass": mine[0].get("tokens_per_pass"),
        "same_text": mine[0]["ids"] == first[0]["ids"],
    }
    return line


def stock_library() -> Path:
    """The folder with stock llama.cpp's libraries, built from the pinned source if it has to be."""
    if not _BUILDER.is_file():
        raise NativeError("stock llama.cpp is built from a checkout only", hint="leave 'stock' out of --rows")
    print("stock llama.cpp: built once, then cached", file=sys.stderr, flush=True)
    result = subprocess.run([sys.executable, str(_BUILDER), "--stock"], stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise NativeError("stock llama.cpp could not be built", hint="see the lines above")
    return Path(result.stdout.strip().splitlines()[-1])
