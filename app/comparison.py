"""The same question answered in two modes, one after the other, and what differs."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.labels import acceptance, per_pass, speed
from app.streams import closing
from app.text import display
from engine.errors import BadRequest

if TYPE_CHECKING:
    from engine.events import Timings
    from engine.messages import ChatChunk

#: Asks the question with these fields over its own.
Ask = Callable[[Mapping[str, Any]], AsyncIterator["ChatChunk"]]

LONGEST = 256  # tokens of an answer, where nobody has said
_EXCERPT = 32  # characters of each text from where they part


@dataclass
class Side:
    """One of the answers. `first_s`: seconds from the request to the first token, its prompt being in the KV
    cache already. `ran`: the mode that was used, which is `ar` where the model cannot do the other. `exact`:
    its text is plain decode's, as the engine says."""

    mode: str
    ran: str = ""
    exact: bool | None = None
    text: str = ""
    first_s: float | None = None
    timings: Timings | None = None
    finish: str = ""

    async def read(self, chunks: AsyncIterator[ChatChunk], changed: Callable[[], None]) -> None:
        started = time.monotonic()
        async with closing(chunks) as stream:
            async for chunk in stream:
                if self.first_s is None and chunk.tokens:
                    self.first_s = time.monotonic() - started
                self.text += chunk.text
                self.timings = chunk.timings or self.timings
                self.finish = chunk.finish or self.finish
                self.ran = chunk.mode or self.ran
                self.exact = self.exact if chunk.exact is None else chunk.exact
                changed()

    @property
    def figures(self) -> str:
        """What it took, in words; "" before there is anything."""
        timings = self.timings
        if timings is None or not timings.predicted_n:
            return ""
        parts = [speed(timings.predicted_per_second), f"{timings.predicted_n} tokens"]
        if self.first_s is not None:
            parts.append(f"first {1e3 * self.first_s:.0f} ms")
        if timings.draft_n:
            parts += [f"acc {acceptance(timings)}", f"{per_pass(timings)}/pass"]
        if self.ran and self.ran != self.mode:
            parts.append(f"ran as {self.ran}")
        return " · ".join(parts)

    def as_json(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "ran_as": self.ran,
            "exact": self.exact,
            "text": self.text,
            "finish": self.finish,
            "first_token_ms": None if self.first_s is None else round(1e3 * self.first_s, 1),
            "timings": None if self.timings is None else self.timings.as_json(),
        }


@dataclass
class Comparison:
    """`options` of both requests: with one seed, so that exact modes draw the same."""

    ask: Ask
    modes: tuple[str, str]
    options: dict[str, Any] = field(default_factory=dict)
    prompt: Timings | None = None  # of the question itself, which both answers find in the cache

    def __post_init__(self) -> None:
        if self.options.get("seed") is None:
            self.options["seed"] = random.getrandbits(31)
        self.options.setdefault("max_tokens", LONGEST)
        self.options["reasoning_format"] = "none"
        self.sides = (Side(self.modes[0]), Side(self.modes[1]))

    @property
    def seed(self) -> int:
        return int(self.options["seed"])

    async def run(self, changed: Callable[[], None]) -> None:
        """Until both are answered; `changed` is called when there is more. Raises the S2Error of either."""
        # Whoever came first would pay for reading the prompt, and the other find it in the KV cache.
        warm = Side("ar")
        await warm.read(self.ask({**self.options, "mode": "ar", "max_tokens": 1}), lambda: None)
        self.prompt = warm.timings
        for side in self.sides:
            await side.read(self.ask({**self.options, "mode": side.mode}), changed)

    @property
    def done(self) -> bool:
        return all(side.finish for side in self.sides)

    @property
    def parted_at(self) -> int | None:
        """The character from which on the texts differ; None where they are equal."""
        return parting(*(side.text for side in self.sides))

    @property
    def gain(self) -> float | None:
        """How much faster the second was than the first; None while that is not known."""
        speeds = [side.timings.predicted_per_second if side.timings else 0.0 for side in self.sides]
        return speeds[1] / speeds[0] if all(speeds) else None

    def verdict(self) -> list[str]:
        """Once it is done: whether the texts are equal, where they part, which was faster."""
        first, second = self.sides
        at = self.parted_at
        if at is None:
            lines = [f"= equal: the same {len(first.text)} characters in both modes"]
        else:
            lines = [f"≠ different from character {at + 1} on:"]
            lines += [f"  {side.mode}: {excerpt(side.text, at)}" for side in self.sides]
        if self.gain is not None:
            lines.append(f"{second.mode} is {self.gain:.2f}× as fast as {first.mode}, measured once")
        return lines

    def prompt_words(self) -> str:
        """What the question took before either answer; "" before that is known."""
        if self.prompt is None:
            return ""
        timings = self.prompt
        return f"prompt {timings.prompt_n + timings.cache_n} tokens, read in {timings.prompt_ms:.0f} ms"

    def as_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "equal": self.done and self.parted_at is None,
            "first_difference": self.parted_at,
            "gain": None if self.gain is None else round(self.gain, 4),
            "answers": [side.as_json() for side in self.sides],
        }


def parting(one: str, other: str) -> int | None:
    """The first place where two texts differ; None where they are the same."""
    if one == other:
        return None
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def excerpt(text: str, at: int) -> str:
    """What stands around `at`, as one line that is safe to show."""
    before, after = display(text[max(0, at - 12) : at]), display(text[at : at + _EXCERPT])
    end = after if after else "(ends here)"
    return f"{'…' if at > 12 else ''}{before}▸{end}".replace("\n", "⏎")


def modes_of(words: str, known: Sequence[str], now: str) -> tuple[tuple[str, str], str]:
    """The two modes that `words` begin with, and what follows them; what is not named is `ar`, then the mode
    of `now`, then the first other one. Raises BadRequest for one that is not `known`, or the same one twice.
    """
    named: list[str] = []
    rest = words.strip()
    head, _, tail = rest.partition(" ")
    if "," in head and any(part in known for part in head.split(",")):
        named = [part for part in head.split(",") if part]
        rest = tail.strip()
    while len(named) < 2 and (word := rest.partition(" "))[0] in known and "," not in head:
        named.append(word[0])
        rest = word[2].strip()
    for name in named:
        if name not in known:
            raise BadRequest(f"unknown mode {name!r}", hint="one of " + ", ".join(known))
    if len(named) > 2 or len(set(named)) < len(named):
        raise BadRequest("two different modes can be compared", hint="one of each: " + ", ".join(known))
    others = [name for name in ("ar", now, "s2-exact", *known) if name in known and name not in named]
    while len(named) < 2 and others:
        named.insert(0 if others[0] == "ar" else len(named), others[0])
        others = [name for name in others if name not in named]
    if len(named) < 2:
        raise BadRequest("this engine has one mode", hint="there is nothing to compare")
    return (named[0], named[1]), rest
