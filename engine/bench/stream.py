"""`bench stream`: what the engine process and the user interface cost, against the loop alone.

Three rows answer the same prompt in turn: `loop` in this process, `engine` through the socket to a client
that throws the text away, and `ui` in the real interface on a pseudo-terminal.
"""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from statistics import median

from engine.bench.loading import load_here
from engine.bench.report import machine, ratio, show
from engine.bench.terminal import Terminal
from engine.chat import Message
from engine.client import EngineClient
from engine.events import Done
from engine.launcher import ensure_engine
from engine.loop import generate
from engine.model import stem_of
from engine.native import CancelFlag
from engine.paths import Paths
from engine.request import Request, Sampling, Speculation
from engine.session import Session
from engine.together import within

_PROMPT = "Write a long story about an old clockmaker in a harbour town, with many chapters."
_WAIT_S = 180.0


def run(args: Namespace) -> None:
    """Alternates the three rows `args.rounds` times and prints medians and ratios to `loop`."""
    with tempfile.TemporaryDirectory(prefix="s2chat-bench-") as home:
        figures = asyncio.run(_alternate(args, Path(home)))
    rows = [
        {
            "bench": "stream",
            "row": name,
            "mode": "ar",
            "model": stem_of(args.model),
            "tokens": args.predict,
            "tok_s": median(values),
            "ratio": ratio(values, figures["loop"]),
            "ratio_to": "loop",
        }
        for name, values in figures.items()
    ]
    foot = f"{stem_of(args.model)}, median of {args.rounds} alternations; {machine()}"
    show(rows, as_json=args.json, foot=foot)


async def _alternate(args: Namespace, home: Path) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {"loop": [], "engine": [], "ui": []}
    paths = Paths(runtime=home / "run", state=home / "state", data=home / "data")
    with load_here(args.model, n_threads=args.threads) as session:
        handle = await asyncio.to_thread(ensure_engine, paths)
        async with EngineClient(handle.socket) as client, aclosing(client.telemetry()) as snapshots:
            await client.load(args.model, n_threads=args.threads)
            async for snapshot in snapshots:
                if snapshot.state == "ready":
                    break
            for warm in (True, *[False] * args.rounds):
                speeds = {
                    "loop": await asyncio.to_thread(_loop, session, args.predict),
                    "engine": await _engine(client, args.predict),
                    "ui": await _ui(client, args, home),
                }
                for name, speed in speeds.items():
                    if not warm:
                        figures[name].append(speed)
            await client.shutdown()
    return figures


def _loop(session: Session, tokens: int) -> float:
    session.rewind(0)
    prompt = session.dialogue.tokenize_chat([Message("user", _PROMPT)])
    request = Request(prompt, Sampling(temperature=0.0), Speculation("ar"), max_tokens=tokens)
    for event in generate(session, request, CancelFlag()):
        if isinstance(event, Done):
            return event.timings.predicted_per_second
    raise AssertionError("an answer always ends")


async def _engine(client: EngineClient, tokens: int) -> float:
    options = {"temperature": 0.0, "max_tokens": tokens, "mode": "ar", "timings_per_token": True}
    speed = 0.0
    async for chunk in client.chat([{"role": "user", "content": _PROMPT}], options=options):
        if chunk.timings is not None:
            speed = chunk.timings.predicted_per_second
    return speed


async def _ui(client: EngineClient, args: Namespace, home: Path) -> float:
    """Opens the interface, types the prompt, and reads the speed from telemetry once the answer ended."""
    async with aclosing(client.telemetry()) as snapshots:
        before = (await anext(snapshots)).clients
        with _interface(args, home) as interface:
            typed = started = False
            while True:
                snapshot = await within(_WAIT_S, anext(snapshots))
                if not typed and snapshot.clients > before:
                    await asyncio.sleep(1.5)  # the screen is drawn and the last chat is open
                    interface.type("\x0e" + _PROMPT + "\r")  # Ctrl+N: a new chat
                    typed = True
                started = started or (typed and snapshot.running > 0)
                if started and not snapshot.running and snapshot.timings is not None:
                    return snapshot.timings.predicted_per_second


@contextmanager
def _interface(args: Namespace, home: Path) -> Iterator[Terminal]:
    """`s2chat` on a pseudo-terminal whose output is thrown away."""
    command = [str(Path(sys.executable).with_name("s2chat")), "-m", str(args.model.absolute())]
    command += ["--temp", "0", "-n", str(args.predict), "--mode", "ar"]
    command += ["-t", str(args.threads)] if args.threads else []
    terminal = Terminal(command, {"S2CHAT_HOME": str(home)}, 100, 30)
    drain = threading.Thread(target=_drain, args=(terminal,), daemon=True)
    drain.start()
    try:
        yield terminal
    finally:
        terminal.process.terminate()
        drain.join()
        terminal.end()


def _drain(terminal: Terminal) -> None:
    with suppress(EOFError):
        terminal.watch(math.inf)
