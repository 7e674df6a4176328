"""What the rows of `bench decode` are called: `stock`, or a mode, with an expansion and an ending at need."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace

from engine.errors import BadRequest
from engine.request import EXPANSIONS, MODES, Speculation

STOCK = "stock"
SYNC = "-sync"  # nothing overlaps
NO_STORE = "-nostore"  # the library as it is without the expert store


@dataclass(frozen=True, slots=True)
class RowName:
    """`mode` is "ar" for stock; `ending` SYNC, NO_STORE or "". As text it is what was asked for."""

    mode: str
    expansion: str
    ending: str
    text: str

    @classmethod
    def parse(cls, text: str, ending: str) -> RowName:
        """MODE, MODE:EXPANSION, either with `ending` behind it, or STOCK. Raises BadRequest."""
        mode, _, expansion = text.removesuffix(ending).partition(":")
        if text != STOCK and (mode not in MODES or expansion not in ("", *EXPANSIONS)):
            hint = f"rows are {STOCK}, {', '.join(MODES)}; behind a mode stand {ending}"
            raise BadRequest(f"no row {text!r}", hint=f"{hint}, or : and one of {', '.join(EXPANSIONS)}")
        return cls("ar" if text == STOCK else mode, expansion, ending if text.endswith(ending) else "", text)

    def speculation(self, args: Namespace) -> Speculation:
        """As the mode drafts for a chat, but for what the row and the bench's flags say."""
        usual = Speculation(self.mode, args.draft_experts, args.draft_length)
        return replace(usual, expansion=self.expansion) if self.expansion else usual
