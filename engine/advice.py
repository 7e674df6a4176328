"""How a model's authors advise to draw from it, as GGUF headers say it (`general.sampling.*`)."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from engine.errors import BadRequest
from engine.header import Value
from engine.request import Sampling

#: Of the header's names those the engine honours, and what a request calls them.
_NAMES = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repeat_penalty",
    "penalty_last_n": "repeat_last_n",
}


def advised_sampling(header: Mapping[str, Value]) -> dict[str, float]:
    """Fields of a Sampling. What could not be asked for either is left out: a strange header is no reason not
    to answer."""
    found: dict[str, float] = {}
    for key, name in _NAMES.items():
        value = header.get(f"general.sampling.{key}")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            number = round(value, 6) if isinstance(value, float) else value  # F32 in the file
            with contextlib.suppress(BadRequest):
                Sampling(**{name: number})  # type: ignore[arg-type]
                found[name] = number
    return found
