"""How sure the student may be: one factor on its logits (temperature scaling, Guo et al. 2017).

What it is taught leans towards tokens that were drawn colder than the teacher's distribution, so it becomes
surer than the teacher, and loops more. The factor goes into the final norm, where it costs nothing and needs
nothing of the program that reads the file.
"""

from __future__ import annotations

import numpy as np
import torch

from training.head import Agreement, Targets
from training.progress import say
from training.shelf import FRAME, Shelf
from training.student import Student

FACTORS = tuple(round(0.70 + 0.02 * step, 2) for step in range(21))  # 0.70 to 1.10


@torch.inference_mode()
def confidence(student: Student, shelf: Shelf) -> float:
    """The one of FACTORS with which the student's distribution is nearest to the teacher's on `shelf`, frames
    not counted. The student's used numbers must be fresh."""
    device = student.trunk.device
    found = {factor: Agreement() for factor in FACTORS}
    for start, length in zip(shelf.starts, shelf.lengths, strict=True):
        rows = slice(int(start), int(start + length))
        tokens = torch.from_numpy(shelf.tokens[rows].astype(np.int64)).to(device)
        following = tokens.roll(-1)
        counted = torch.from_numpy((shelf.roles[rows] != FRAME).astype(np.float32)).to(device).roll(-1)
        counted[-1] = 0.0
        targets = Targets.of(shelf, rows, device)
        final, _ = student.forward(tokens, [int(length)])
        logits = student.trunk.logits(final)
        for factor, agreement in found.items():
            agreement.add(logits * factor, targets, following, counted)
    figures = {factor: agreement.as_dict() for factor, agreement in found.items()}
    best = min(figures, key=lambda factor: figures[factor]["kl"])
    for factor in (best, 1.0):
        row = figures[factor]
        say(f"  confidence {factor:.2f}: " + "  ".join(f"{key} {row[key]:.4f}" for key in ("kl", "ratio")))
    return best
