"""Sizes in bytes as people write and read them; K, M, G and T are powers of 1024."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from engine.errors import BadRequest

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([KMGT]?)(?:IB)?")


def parse_size(text: str) -> int:
    """Bytes. Raises BadRequest that says what a size looks like."""
    match = _SIZE.fullmatch(text.strip().upper())
    if match is None:
        raise BadRequest(f"{text!r} is no size", hint="write one such as 4G, 1.5G or 200M")
    return math.ceil(Fraction(match[1]) * (1 << 10 * " KMGT".index(match[2] or " ")))


def size(count_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count_bytes < 1024:
            return f"{count_bytes:.0f} {unit}"
        count_bytes /= 1024
    return f"{count_bytes:.1f} GiB"
