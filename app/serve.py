"""`s2chat serve`: keeps an engine with a model for other programs, and opens it a TCP port when asked."""

from __future__ import annotations

import argparse
import dataclasses

from app import exits
from app.flags import FLAGS, Flag, add_flag, text
from engine.errors import BadRequest
from engine.request import SPECULATION_FIELDS

NOTES = """\
The endpoint speaks OpenAI's protocol (chat and text completions, models, tools, response_format, logprobs)
with llama.cpp's timings, /tokenize and /metrics; /openapi.json describes it. It is always on the Unix socket,
for this user alone. With --port it is on 127.0.0.1 too: programs there show the token of the token file as
their API key, web pages are refused unless --origin names them. Ctrl+C ends it.
From another machine: ssh -L to the port, and `s2chat --server http://127.0.0.1:PORT --key-file FILE` there.
"""


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    for flag in FLAGS:
        if flag.target == "load" or flag.field in ("model", *SPECULATION_FIELDS):
            add_flag(parser, _as_default(flag))
    parser.add_argument(
        "--port",
        metavar="N",
        type=_port,
        help="TCP port on 127.0.0.1, 0 for any; without it the socket alone",
    )
    parser.add_argument(
        "--origin",
        metavar="URL",
        action="append",
        type=text,
        default=[],
        help="web pages of this origin may use the port, as http://localhost:3000; repeatable",
    )


def serve(arguments: argparse.Namespace) -> int:
    """Until it is interrupted. Restarts an engine that dies."""
    if arguments.origin and arguments.port is None:
        raise BadRequest("--origin without --port", hint="web pages cannot reach the socket")
    import asyncio

    from app.service import Service

    try:
        asyncio.run(Service(arguments).run())
    except (KeyboardInterrupt, asyncio.CancelledError):
        return exits.OK
    return exits.OK


def _as_default(flag: Flag) -> Flag:
    """Modes and their numbers are those of requests that say nothing of them."""
    said = ", where a request says nothing"
    return dataclasses.replace(flag, help=flag.help + said) if flag.field in SPECULATION_FIELDS else flag


def _port(word: str) -> int:
    if not (word.isdecimal() and int(word) <= 65535):
        raise argparse.ArgumentTypeError(f"{word!r} is no port, which are 0 to 65535")
    return int(word)
