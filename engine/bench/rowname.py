"""What the rows of `bench decode` are called: `stock`, or a mode with how it drafts and an ending at need."""

from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import dataclass, replace

from engine.errors import BadRequest
from engine.request import EXPANSIONS, MODES, Speculation

_ROW = re.compile(r"(?P<mode>[a-z0-9-]+?)(?::(?P<expansion>[a-z]+))?(?:@(?P<experts>[1-9][0-9]{0,3}))?")
STOCK = "stock"
SYNC = "-sync"  # nothing overlaps
NO_STORE = "-nostore"  # the library as it is without the expert store


@dataclass(frozen=True, slots=True)
class RowName:
    """`mode` is "ar" for stock; `ending` SYNC, NO_STORE or "". `draft_experts` 0: those of the bench's flag.
    As text it is what was asked for."""

    mode: str
    expansion: str
    draft_experts: int
    ending: str
    text: str

    @classmethod
    def parse(cls, text: str, ending: str) -> RowName:
        """MODE[:EXPANSION][@DRAFT_EXPERTS][`ending`], or STOCK. Raises BadRequest."""
        if text == STOCK:
            return cls("ar", "", 0, "", text)
        match = _ROW.fullmatch(text.removesuffix(ending))
        if match is None or match["mode"] not in MODES or (match["expansion"] or "fixed") not in EXPANSIONS:
            hint = f"rows are {STOCK}, {', '.join(MODES)}; behind a mode stand : and one of"
            ends = f"{', '.join(EXPANSIONS)}, @ and a number of draft experts, {ending}"
            raise BadRequest(f"no row {text!r}", hint=f"{hint} {ends}")
        experts = int(match["experts"] or 0)
        end = ending if text.endswith(ending) else ""
        return cls(match["mode"], match["expansion"] or "", experts, end, text)

    def speculation(self, args: Namespace) -> Speculation:
        """As the mode drafts for a chat, but for what the row and the bench's flags say."""
        experts = self.draft_experts or args.draft_experts
        usual = Speculation(self.mode, experts, args.draft_length)
        return replace(usual, expansion=self.expansion) if self.expansion else usual
