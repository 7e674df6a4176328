"""Weights that contribute nothing and still look like weights: random bits, so that no file system, disk
controller or archive makes them smaller than they are.

In a quantised block the scale is zero and the rest is random, so that its weights are zeros. F32, F16, BF16
and MXFP4 have no scale that can be zero (the smallest of MXFP4 is 2^-128). Of these, `QUIET` weights are
zeros with a random sign, and `LOUD` ones small random numbers, for tensors whose products a quiet tensor
makes zero.
"""

from __future__ import annotations

import zlib
from enum import Enum
from functools import cache

import numpy as np
import numpy.typing as npt

from engine.header import BLOCKS

Bytes = npt.NDArray[np.uint8]

_MXFP4, _IQ1_M = 39, 29
#: Of each type: the bytes of a block that hold its scale, and its minimum where it has one.
_SCALES = {
    2: range(2),  # Q4_0
    3: range(4),  # Q4_1
    6: range(2),  # Q5_0
    7: range(4),  # Q5_1
    8: range(2),  # Q8_0
    10: range(80, 84),  # Q2_K
    11: range(108, 110),  # Q3_K
    12: range(4),  # Q4_K
    13: range(4),  # Q5_K
    14: range(208, 210),  # Q6_K
    16: range(2),  # IQ2_XXS
    17: range(2),  # IQ2_XS
    18: range(2),  # IQ3_XXS
    19: range(2),  # IQ1_S
    20: range(2),  # IQ4_NL
    21: range(2),  # IQ3_S
    22: range(2),  # IQ2_S
    23: range(2),  # IQ4_XS
    34: range(52, 54),  # TQ1_0
    35: range(64, 66),  # TQ2_0
    40: range(4),  # NVFP4
    41: range(2),  # Q1_0
    42: range(2),  # Q2_0
}
#: Of each plain type: bits kept of a loud weight, and bits set; magnitudes are from 2^-7 up to 2^-5.
_PLAIN = {
    0: (b"\xff\xff\xff\x80", b"\x00\x00\x00\x3c"),  # F32
    1: (b"\xff\x83", b"\x00\x20"),  # F16
    30: (b"\xff\x80", b"\x00\x3c"),  # BF16
}


class Fill(Enum):
    """What added weights are."""

    ZERO = "zero"  # every bit: biases, which are too small to matter
    QUIET = "quiet"
    LOUD = "loud"


TYPES = frozenset({*_SCALES, *_PLAIN, _MXFP4, _IQ1_M})


class Filler:
    """Added bytes for the tensor `name`; the same for the same seed."""

    def __init__(self, name: str, kind: int, fills: tuple[Fill, ...], seed: int) -> None:
        self._masks = [_masks(kind, fill) for fill in fills]
        # The raw stream of a bit generator is one that NumPy promises never to change.
        self._random = np.random.SFC64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))

    def rows(self, start: int, count: int, size: int) -> Bytes:
        """`count` rows of `size` bytes, whole blocks each; the first is row `start` of the tensor."""
        words = self._random.random_raw(-(-count * size // 8))
        rows: Bytes = np.asarray(words, dtype="<u8").view(np.uint8)[: count * size].reshape(count, size)
        for turn in range(len(self._masks)):
            kept, added = (_repeated(mask, size) for mask in self._masks[(start + turn) % len(self._masks)])
            mine = rows[turn :: len(self._masks)]
            mine &= kept
            mine |= added
        return rows


@cache
def _masks(kind: int, fill: Fill) -> tuple[bytes, bytes]:
    """The bits of a block that stay random, and those that are set."""
    size = BLOCKS[kind][1]
    if fill is Fill.ZERO:
        return bytes(size), bytes(size)
    if kind in _PLAIN:
        return _PLAIN[kind] if fill is Fill.LOUD else (bytes(size - 1) + b"\x80", bytes(size))
    if kind == _MXFP4:  # an exponent and 32 codes of four bits, of which 0 and 8 are zeros
        loud = fill is Fill.LOUD
        return b"\x03" + (b"\xff" if loud else b"\x88") * 16, (b"\x70" if loud else b"\x78") + bytes(16)
    kept = bytearray(b"\xff" * size)
    if kind == _IQ1_M:  # the scale is spread over the upper nibbles of four words
        kept[49::2] = b"\x0f" * 4
    else:
        scale = _SCALES[kind]
        kept[scale.start : scale.stop] = bytes(len(scale))
    return bytes(kept), bytes(size)


@cache
def _repeated(mask: bytes, size: int) -> Bytes:
    return np.frombuffer(mask * (size // len(mask)), dtype=np.uint8)
