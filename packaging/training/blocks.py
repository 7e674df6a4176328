"""Blocks of 32 numbers as ggml writes Q4_0: an F16 scale and 16 bytes of codes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
SIZE, BYTES = 32, 18  # numbers and bytes of a block


def encode(values: Floats) -> Bytes:
    """Q4_0 of `values` [..., n], n a multiple of 32, as quantize_row_q4_0_ref: bytes [..., n / 32 * 18].

    The number that is largest by size (the first of equals) becomes code 0. Product and sum are rounded
    apart, as in the `gguf` package; where a compiler fuses them, one number in millions gets the code
    beside.
    """
    rows = np.ascontiguousarray(values, dtype=np.float32).reshape(-1, SIZE)
    largest = np.take_along_axis(rows, np.abs(rows).argmax(axis=1)[:, None], axis=1)
    scale = largest / np.float32(-8)
    with np.errstate(divide="ignore"):
        inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    codes = (rows * inverse + np.float32(8.5)).astype(np.uint8).clip(0, 15)
    packed = codes[:, : SIZE // 2] | codes[:, SIZE // 2 :] << np.uint8(4)
    blocks = np.concatenate([scale.astype(np.float16).view(np.uint8), packed], axis=1)
    return blocks.reshape(*values.shape[:-1], values.shape[-1] // SIZE * BYTES)


def decode(blocks: Bytes) -> Floats:
    """The numbers that `blocks` [..., bytes] stand for."""
    rows = np.ascontiguousarray(blocks).reshape(-1, BYTES)
    scale = rows[:, :2].copy().view(np.float16).astype(np.float32)
    codes = np.concatenate([rows[:, 2:] & np.uint8(15), rows[:, 2:] >> np.uint8(4)], axis=1)
    values = scale * (codes.astype(np.float32) - np.float32(8))
    return values.reshape(*blocks.shape[:-1], blocks.shape[-1] // BYTES * SIZE)
