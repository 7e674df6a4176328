"""Q4_0 rounding of training weights, in place of the numbers an exported file would hold."""

from __future__ import annotations

import torch

_ROWS = 1 << 13  # blocks at a time: they stay in the processor's cache


def rounded_(target: torch.Tensor, values: torch.Tensor) -> None:
    """Writes into `target` what ggml's Q4_0 makes of `values`: F32, any shape, rows of a multiple of 32.

    The same numbers as `blocks.decode(blocks.encode(values))`, bit for bit where `target` is F32.
    """
    source, out = values.reshape(-1, 32), target.view(-1, 32)
    for start in range(0, source.shape[0], _ROWS):
        rows = source[start : start + _ROWS]
        high, low = rows.amax(1, keepdim=True), rows.amin(1, keepdim=True)
        largest = torch.where(high > -low, high, low)
        tied = (high == -low).flatten()
        if tied.any():
            first = (rows[tied].abs() == high[tied]).to(torch.uint8).argmax(1, keepdim=True)
            largest[tied] = rows[tied].gather(1, first)
        scale = largest / -8
        inverse = torch.where(scale == 0, torch.zeros_like(scale), 1 / scale)
        codes = (rows * inverse).add_(8.5).floor_().clamp_(0, 15).sub_(8)
        out[start : start + _ROWS] = codes.mul_(scale.half().float())
