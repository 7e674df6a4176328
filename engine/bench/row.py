"""One row of a decode bench: a process that holds a model and answers on demand.

Run as `python -m engine.bench.row ROW ...`. It reads a line from standard input for each answer wanted and
writes one JSON object for each. Rows live in processes of their own because stock llama.cpp and ours are two
libraries of one name.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import NativeError

Figures = dict[str, Any]


def _text() -> str:
    """Prose that every Python brings along and no model repeats by heart: the language reference."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))[:200_000]


class Row:
    """The parent's handle on a row."""

    def __init__(self, name: str, args: Namespace, prompt: int, library: Path | None) -> None:
        environment = dict(os.environ)
        if library is not None:
            environment["LLAMA_CPP_LIB_PATH"] = str(library)
        command = [sys.executable, "-I", "-m", "engine.bench.row", name, "-m", str(args.model.absolute())]
        command += ["-n", str(args.predict), "-p", str(prompt), "-t", str(args.threads)]
        command += ["--draft-experts", str(args.draft_experts), "--draft-length", str(args.draft_length)]
        self.name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def run(self) -> Figures:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died; the empty line below says so
            self._process.stdin.write("run\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise NativeError(
                f"row {self.name} ended with exit code {self._process.wait()}", hint="see above"
            )
        figures: Figures = json.loads(line)
        return figures

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _ours(args: Namespace) -> Callable[[], Figures]:
    """`ar` or `s2-exact`, as the engine runs them."""
    from engine.device import detect
    from engine.events import Done, Tokens
    from engine.loop import generate
    from engine.model import read_model_info
    from engine.native import CancelFlag
    from engine.plan import Wishes, make_plan
    from engine.request import Request, Sampling, Speculation
    from engine.session import Session

    wishes = Wishes(n_ctx=args.prompt + args.predict + 256, n_threads=args.threads)
    session = Session.load(args.model, make_plan(detect(), read_model_info(args.model), wishes))
    tokens = session.vocab.tokenize(_text(), add_special=True, parse_special=True)
    prompt = tuple(tokens[: args.prompt])
    request = Request(
        prompt,
        Sampling(temperature=0.0),
        Speculation(args.row, args.draft_experts, args.draft_length),
        max_tokens=args.predict,
        ignore_eos=True,
    )

    def run() -> Figures:
        session.rewind(0)
        ids: list[int] = []
        for event in generate(session, request, CancelFlag()):
            if isinstance(event, Tokens):
                ids += event.ids
            elif isinstance(event, Done):
                timings = event.timings
        return {
            "prefill_tok_s": timings.prompt_per_second,
            "tok_s": timings.predicted_per_second,
            "acceptance": timings.acceptance,
            "tokens_per_pass": timings.tokens_per_pass,
            "ids": ids,
        }

    return run


def _stock(args: Namespace) -> Callable[[], Figures]:
    """llama.cpp as it comes, with its own defaults but for context and threads, sampling greedily."""
    import llama_cpp.llama_cpp as llama

    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(str(args.model).encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_ctx = args.prompt + args.predict + 256
    params.n_threads = params.n_threads_batch = args.threads
    context = llama.llama_init_from_model(model, params)
    vocab, data = llama.llama_model_get_vocab(model), _text().encode()
    tokens = (llama.llama_token * (len(data) + 8))()
    llama.llama_tokenize(vocab, data, len(data), tokens, len(tokens), True, True)
    sampler = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    ends = [i for i in range(llama.llama_vocab_n_tokens(vocab)) if llama.llama_vocab_is_eog(vocab, i)]
    bias = (llama.llama_logit_bias * len(ends))(*((token, float("-inf")) for token in ends))
    n_vocab = llama.llama_vocab_n_tokens(vocab)
    llama.llama_sampler_chain_add(sampler, llama.llama_sampler_init_logit_bias(n_vocab, len(ends), bias))
    llama.llama_sampler_chain_add(sampler, llama.llama_sampler_init_greedy())

    def decode(part: list[int]) -> None:
        array = (llama.llama_token * len(part))(*part)
        if llama.llama_decode(context, llama.llama_batch_get_one(array, len(part))) != 0:
            raise RuntimeError("stock llama.cpp failed to decode")

    def run() -> Figures:
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        started = time.perf_counter()
        decode(list(tokens[: args.prompt]))
        llama.llama_synchronize(context)
        prefilled = time.perf_counter()
        ids = [llama.llama_sampler_sample(sampler, context, -1)]
        while len(ids) < args.predict:
            decode(ids[-1:])
            ids.append(llama.llama_sampler_sample(sampler, context, -1))
        ended = time.perf_counter()
        return {
            "prefill_tok_s": args.prompt / (prefilled - started),
            "tok_s": args.predict / (ended - prefilled),
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
    args = parser.parse_args()
    run = (_stock if args.row == "stock" else _ours)(args)
    for _ in sys.stdin:
        print(json.dumps(run()), flush=True)


if __name__ == "__main__":
    _main()
