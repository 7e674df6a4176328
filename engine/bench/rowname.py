"""What the rows of `bench decode` are called: `stock`, or a mode, with settings and an ending at need."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine.errors import BadRequest
from engine.request import EXPANSIONS, MODES, Speculation

STOCK = "stock"
SYNC = "-sync"  # nothing overlaps
NO_STORE = "-nostore"  # the library as it is without the expert store


#: Settings by the names they have in a row: fields of a Speculation.
_SETTINGS = {"k": "draft_experts", "length": "draft_length", "cap": "cap", "beta": "beta"}


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
        """STOCK, or MODE[:SETTING...][ending]; a setting is an expansion, or k=, length=, cap= or beta=.

        Raises BadRequest.
        """
        if text == STOCK:
            return cls("ar", {}, "", text)
        mode, *words = text.removesuffix(ending).split(":")
        try:
            settings = dict(map(_setting, words))
        except ValueError:
            settings = None
        if mode not in MODES or settings is None:
            known = ", ".join((*EXPANSIONS, *(f"{name}=" for name in _SETTINGS)))
            hint = (
                f"rows are {STOCK}, {', '.join(MODES)}; behind a mode stand {ending}, or : and one of {known}"
            )
            raise BadRequest(f"no row {text!r}", hint=hint)
        return cls(mode, settings, ending if text.endswith(ending) else "", text)

    def speculation(self, args: Namespace) -> Speculation:
        """As the mode drafts for a chat, but for what the row and the bench's flags say."""
        return replace(Speculation(self.mode, args.draft_experts, args.draft_length), **self.settings)


def _setting(word: str) -> tuple[str, Any]:
    """A field of a Speculation and its value. Raises ValueError where there is none such."""
    if word in EXPANSIONS:
        return "expansion", word
    name, _, value = word.partition("=")
    if name not in _SETTINGS:
        raise ValueError(word)
    return _SETTINGS[name], float(value) if name == "beta" else int(value)
