"""What the rows of `bench decode` are called: `stock`, or a mode, with settings and an ending at need."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import BadRequest
from engine.request import EXPANSIONS, MODES, Sampling, Speculation

STOCK = "stock"
SYNC = "-sync"  # nothing overlaps
NO_STORE = "-nostore"  # the library as it is without the expert store
_SEED = 1

#: Settings by the names they have in a row: fields of a Speculation, and how they are read.
_SETTINGS: dict[str, tuple[str, Callable[[str], float]]] = {
    "length": ("draft_length", int),
    "cap": ("cap", int),
    "beta": ("beta", float),
}


@dataclass(frozen=True, slots=True)
class RowName:
    """`mode` is "ar" for stock; `settings` are fields of a Speculation; `ending` SYNC, NO_STORE or "". As
    text it is what was asked for."""

    mode: str
    settings: Mapping[str, Any]
    ending: str
    text: str

    @classmethod
    def parse(cls, text: str, ending: str) -> RowName:
        """STOCK, or MODE[:SETTING...][@DRAFT_EXPERTS][`ending`]; a setting is an expansion or NAME=NUMBER.

        Raises BadRequest.
        """
        if text == STOCK:
            return cls("ar", {}, "", text)
        head, at, experts = text.removesuffix(ending).partition("@")
        mode, *words = head.split(":")
        try:
            settings = dict(map(_setting, words))
            if at:
                settings["draft_experts"] = int(experts)
            Speculation(mode, **settings)
        except (ValueError, BadRequest):
            numbers = ", ".join(f"{name}=" for name in _SETTINGS)
            hint = f"rows are {STOCK}, {', '.join(MODES)}; behind a mode stand : and one of"
            ends = f"{', '.join(EXPANSIONS)}, {numbers}, @ and a number of draft experts, {ending}"
            raise BadRequest(f"no row {text!r}", hint=f"{hint} {ends}") from None
        return cls(mode, settings, ending if text.endswith(ending) else "", text)

    def sampling(self, args: Namespace) -> Sampling:
        """As the bench's flags say, with one seed for all: in an exact mode rows draw the same."""
        return Sampling(temperature=args.temp, seed=_SEED)

    def speculation(self, args: Namespace) -> Speculation:
        """As the mode drafts for a chat, but for what the row and the bench's flags say."""
        return replace(Speculation(self.mode, args.draft_experts, args.draft_length), **self.settings)


def heat_words(args: Namespace) -> str:
    """For the foot of a table: nothing where the likeliest token is drawn."""
    return f" at temperature {args.temp:g}" if args.temp else ""


def check_temperature(names: Sequence[str], temperature: float) -> None:
    """Raises BadRequest where a row cannot draw."""
    if temperature and STOCK in names:
        raise BadRequest(f"{STOCK} draws the likeliest token only", hint="--temp 0, or --rows without it")


def _setting(word: str) -> tuple[str, Any]:
    """A field of a Speculation and its value. Raises ValueError where there is none such."""
    if word in EXPANSIONS:
        return "expansion", word
    name, _, value = word.partition("=")
    if name not in _SETTINGS:
        raise ValueError(word)
    field, read = _SETTINGS[name]
    return field, read(value)
