"""One row of a decode bench: a process that holds a model and answers on demand.

Run as `python -m engine.bench.row ROW ...`.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.bench.child import Child, serve
from engine.bench.rowname import NO_STORE, STOCK, RowName

if TYPE_CHECKING:
    from engine.events import Timings

Figures = dict[str, Any]
#: Of a request's timings, those that are summed over several.
_ADDED = ("prompt_n", "prompt_ms", "predicted_n", "predicted_ms", "draft_n", "draft_n_accepted", "verify_n")


def _text() -> str:
    """Prose that every Python brings along and no model repeats by heart: the language reference."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))[:200_000]


class Row(Child):
    """The parent's handle on a row."""

    def __init__(self, name: str, args: Namespace, prompt: int, library: Path | None) -> None:
        arguments = [name, "-m", str(args.model.absolute())]
        arguments += ["-n", str(args.predict), "-p", str(prompt), "-t", str(args.threads)]
        arguments += ["--draft-experts", str(args.draft_experts), "--draft-length", str(args.draft_length)]
        arguments += ["--temp", str(args.temp)]
        super().__init__(f"row {name}", __name__, arguments, library=library)

    def run(self, prompts: Sequence[Sequence[int]] | None = None) -> Figures:
        """What answers to `prompts` took, or one to a text of as many tokens as the row was made for."""
        figures: Figures = self.ask(prompts)
        return figures


def _ours(args: Namespace) -> Callable[[object], Figures]:
    """A mode, as the engine runs it."""
    from engine.bench.loading import load_here
    from engine.events import Done, Timings, Tokens
    from engine.loop import generate
    from engine.native import CancelFlag
    from engine.request import Request

    name = RowName.parse(args.row, NO_STORE)
    session = load_here(
        args.model,
        n_ctx=args.prompt + args.predict + 256,
        n_threads=args.threads,
        store=False if name.ending else None,
    )
    tokens = session.vocab.tokenize(_text(), add_special=True, parse_special=True)
    sampling, speculation = name.sampling(args), name.speculation(args)

    def answer(prompt: Sequence[int], ids: list[int]) -> Timings:
        session.rewind(0)
        request = Request(tuple(prompt), sampling, speculation, max_tokens=args.predict, ignore_eos=True)
        for event in generate(session, request, CancelFlag()):
            if isinstance(event, Tokens):
                ids += event.ids
            elif isinstance(event, Done):
                timings = event.timings
        return timings

    def run(prompts: Any) -> Figures:
        ids: list[int] = []
        each = [answer(prompt, ids) for prompt in prompts or [tokens[: args.prompt]]]
        added = Timings(**{name: sum(getattr(timings, name) for timings in each) for name in _ADDED})
        return {
            "prefill_tok_s": added.prompt_per_second,
            "tok_s": added.predicted_per_second,
            "acceptance": added.acceptance,
            "tokens_per_pass": added.tokens_per_pass,
            "ids": ids,
        }

    return run


def _stock(args: Namespace) -> Callable[[object], Figures]:
    """llama.cpp as it comes, with its own defaults but for context and threads, sampling greedily."""
    from engine.bench.stock import Stock

    stock = Stock(args.model, args.prompt + args.predict + 256, args.threads)
    text = stock.tokenize(_text())[: args.prompt]

    def answer(prompt: Sequence[int], ids: list[int]) -> tuple[float, float]:
        """Seconds that the prompt took, and the rest."""
        started = time.perf_counter()
        stock.prefill(prompt)
        prefilled = time.perf_counter()
        ids.append(stock.sample())
        for _ in range(args.predict - 1):
            stock.feed(ids[-1:])
            ids.append(stock.sample())
        return prefilled - started, time.perf_counter() - prefilled

    def run(prompts: Any) -> Figures:
        ids: list[int] = []
        prompts = prompts or [text]
        took = [answer(prompt, ids) for prompt in prompts]
        return {
            "prefill_tok_s": sum(map(len, prompts)) / sum(prefill for prefill, _ in took),
            "tok_s": len(ids) / sum(decode for _, decode in took),
            "ids": ids,
        }

    return run


def _main() -> None:
    parser = ArgumentParser()
    parser.add_argument("row")
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("-p", "--prompt", type=int, required=True)
    parser.add_argument("-n", "--predict", type=int, required=True)
    parser.add_argument("-t", "--threads", type=int, required=True)
    parser.add_argument("--draft-experts", type=int, required=True)
    parser.add_argument("--draft-length", type=int, required=True)
    parser.add_argument("--temp", type=float, required=True)
    args = parser.parse_args()
    serve(lambda: (_stock if args.row == STOCK else _ours)(args))


if __name__ == "__main__":
    _main()
