"""The flags of a chat and of a one-shot run: one table for parsing, help and the request."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from app.lossy import mode_words
from engine.budget import parse_budget
from engine.errors import BadRequest
from engine.paths import EMBEDDED_MODEL
from engine.request import CACHE_TYPES, EFFORTS, MODES, check_mode

Target = Literal["load", "request", "program"]
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Flag:
    """`field` is the name in the load call or the request; flags for the `program` are read by name."""

    names: tuple[str, ...]
    target: Target
    field: str
    type: Callable[[str], Any]
    help: str
    metavar: str = "N"
    choices: tuple[str, ...] | None = None


def number(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{word} is not a number that can be used")
    return value


def text(word: str) -> str:
    """Bytes of the command line that are no UTF-8 become replacement marks, as in what is piped in."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _file(word: str) -> Path:
    if text(word) != word:
        raise argparse.ArgumentTypeError("a name that is not valid UTF-8 cannot be used, rename the file")
    return Path(word)


def _switch(word: str) -> bool:
    if word not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"{word!r} is neither on nor off")
    return word == "on"


def _budget(word: str) -> int | str:
    return _checked(word, lambda text: parse_budget(text).wire)


def _mode(word: str) -> str:
    return _checked(word, check_mode)


def _checked(word: str, read: Callable[[str], _Value]) -> _Value:
    """What `read` makes of `word`; its complaint as one about a flag."""
    try:
        return read(word)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(error.line()) from None


# Names and meanings follow llama.cpp where it has the same flag.
FLAGS = (
    Flag(
        ("-m", "--model"),
        "program",
        "model",
        _file,
        "GGUF file; the small model that ships by default",
        "FILE",
    ),
    Flag(
        ("-c", "--ctx-size"),
        "load",
        "n_ctx",
        int,
        "context size in tokens; chosen for the machine by default",
    ),
    Flag(
        ("-t", "--threads"), "load", "n_threads", int, "threads that decode, fewer while others use the cores"
    ),
    Flag(
        ("--cache-type",),
        "load",
        "cache_type",
        str,
        "type of the KV cache: f16, or q8_0 for nearly half its memory (-ctk and -ctv of llama.cpp)",
        "TYPE",
        tuple(CACHE_TYPES),
    ),
    Flag(
        ("--budget",),
        "load",
        "budget",
        _budget,
        "memory for the whole engine: 3G, 25%% of the model's files, or max; by default the model whole "
        "where it fits, else what is free",
        "SIZE",
    ),
    Flag(("-n", "--predict"), "request", "max_tokens", int, "longest answer in tokens, -1 for no limit"),
    Flag(("--temp",), "request", "temperature", number, "temperature, 0 for the likeliest token"),
    Flag(("--top-k",), "request", "top_k", int, "sample from the K likeliest tokens, 0 for all", "K"),
    Flag(("--top-p",), "request", "top_p", number, "sample from the likeliest tokens that sum to P", "P"),
    Flag(("--min-p",), "request", "min_p", number, "drop tokens less likely than P times the likeliest", "P"),
    Flag(
        ("--repeat-penalty",),
        "request",
        "repeat_penalty",
        number,
        "penalty for repeated tokens, 1 for none",
        "X",
    ),
    Flag(("-s", "--seed"), "request", "seed", int, "seed of the sampler, -1 for a new one each time"),
    Flag(
        ("--effort",),
        "request",
        "reasoning_effort",
        str,
        "how much a model thinks that lets one choose: " + ", ".join(EFFORTS),
        "LEVEL",
        EFFORTS,
    ),
    Flag(
        ("--mode",),
        "request",
        "mode",
        _mode,
        "how to decode: " + ", ".join(map(mode_words, MODES)),
        "MODE",
    ),
    Flag(("--draft-experts",), "request", "draft_experts", int, "experts per token while drafting", "K"),
    Flag(("--draft-length",), "request", "draft_length", int, "longest draft in tokens"),
    Flag(("--cap",), "request", "cap", int, "experts per layer that verifying prefers in lossy modes", "N"),
    Flag(
        ("--resident-only",),
        "request",
        "resident_only",
        _switch,
        "whether drafts choose among the experts in memory alone (default on; the text stays the same)",
        "on|off",
    ),
    Flag(
        ("--prefetch",),
        "request",
        "prefetch",
        _switch,
        "whether experts are read before they are asked for (default on; the text stays the same)",
        "on|off",
    ),
    Flag(("-sys", "--system"), "program", "system", text, "system prompt", "TEXT"),
    Flag(
        ("--server",),
        "program",
        "server",
        text,
        "answers come from this server, ours or any that speaks OpenAI's protocol, and -m names one of its "
        "models; local for this machine",
        "URL",
    ),
    Flag(("--key-file",), "program", "key_file", Path, "file that holds the key of --server", "FILE"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    for flag in FLAGS:
        add_flag(parser, flag)


def add_flag(parser: argparse.ArgumentParser, flag: Flag) -> None:
    parser.add_argument(
        *flag.names,
        dest=flag.field,
        type=flag.type,
        metavar=flag.metavar,
        choices=flag.choices,
        help=flag.help,
    )


def model_of(arguments: argparse.Namespace) -> Path:
    model: Path | None = arguments.model
    return (model or EMBEDDED_MODEL).expanduser().absolute()


def fields_for(target: Target, arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields the user set; -1 is llama.cpp's way to say that a limit or seed is not set."""
    values = {flag.field: getattr(arguments, flag.field, None) for flag in FLAGS if flag.target == target}
    unset = {"max_tokens": -1, "seed": -1, "n_ctx": 0}
    return {name: value for name, value in values.items() if value is not None and value != unset.get(name)}
