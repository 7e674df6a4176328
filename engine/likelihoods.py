"""Words log-probabilities as OpenAI's two calls have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.events import TokenLogprob

_LEAST = -9999.0  # JSON has no infinity; OpenAI writes this


class Likelihoods:
    """Of one answer; the older call wants to know where in the text each token begins."""

    def __init__(self, *, chat: bool) -> None:
        self._chat = chat
        self._offset = 0

    def of(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"content": [_entry(one) for one in entries]} if self._chat else self._columns(entries)

    def _columns(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        tokens = [_text(one.piece) for one in entries]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(token)
        return {
            "tokens": tokens,
            "token_logprobs": [_number(one.logprob) for one in entries],
            "top_logprobs": [{_text(piece): _number(value) for piece, value in one.top} for one in entries],
            "text_offset": offsets,
        }


def _entry(one: TokenLogprob) -> dict[str, Any]:
    return {**_candidate(one.piece, one.logprob), "top_logprobs": [_candidate(*top) for top in one.top]}


def _candidate(piece: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _text(piece), "logprob": _number(logprob), "bytes": list(piece)}


def _text(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")


def _number(logprob: float) -> float:
    return max(_LEAST, logprob)
