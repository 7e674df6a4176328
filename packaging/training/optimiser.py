"""AdamW over every layer's weights, routers at a pace of their own, and a pace that rises, then falls."""

from __future__ import annotations

import math

import torch

from training.student import Student

RATE, RATE_ROUTER = 4e-4, 1.5e-3
_WARM = 0.03  # of all steps
_LAST = 0.05  # of the highest pace


class Optimiser:
    """Steps with the gradients that the student's weights hold."""

    def __init__(self, student: Student) -> None:
        named = list(student.parameters())
        parts = [
            {
                "params": [weight for name, weight in named if (name == "router") == routers],
                "base": base,
            }
            for routers, base in ((True, RATE_ROUTER), (False, RATE))
        ]
        self._adam = torch.optim.AdamW(parts, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
        self._weights = [weight for _, weight in named]

    def step(self, progress: float, limit: float = 1.0) -> float:
        """One step at `progress` (0 to 1) of the training, the gradient cut to length `limit`; returns
        its length."""
        length = float(torch.nn.utils.clip_grad_norm_(self._weights, limit, foreach=True))
        for part in self._adam.param_groups:
            part["lr"] = part["base"] * pace(progress)
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return length

    def state(self) -> dict[str, object]:
        return self._adam.state_dict()

    def load(self, state: dict[str, object]) -> None:
        self._adam.load_state_dict(state)


def pace(progress: float) -> float:
    """Share of the highest pace."""
    if progress < _WARM:
        return max(progress / _WARM, 0.02)
    done = (progress - _WARM) / (1 - _WARM)
    return _LAST + (1 - _LAST) * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
