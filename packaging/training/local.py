"""Layer-wise training: each layer of experts learns what the teacher's layer does, on the teacher's own
inputs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch

from training import checkpoint
from training.cutting import evened
from training.optimiser import Optimiser
from training.progress import Progress
from training.shelf import Reader, Step
from training.student import RHO, Student
from training.team import MEET_EVERY, Team
from training.trunk import norm, places

_BALANCE, _RESTLESS = 0.01, 0.3
_KEEP_EVERY = 5 * MEET_EVERY  # steps between checkpoints


def train(student: Student, reader: Reader, steps: int, path: Path, team: Team | None = None) -> list[float]:
    """`steps` passes in all, shared by `team`; goes on from the checkpoint at `path`. Returns what each layer
    misses in the end."""
    team, done = team or Team(), 0
    steps = -(-steps // team.size)
    optimiser = Optimiser(student)
    if path.exists():
        state = checkpoint.load(path, student.trunk.device)
        done = state["step"]
        for moe, kept in zip(student.layers, state["layers"], strict=True):
            for name, values in kept.items():
                getattr(moe, name).data.copy_(values)
        optimiser.load(state["optimiser"])
    missed = [1.0] * len(student.layers)
    progress = Progress("local", steps, "steps", done)
    passes = islice(reader.steps(skip=done * team.size), team.rank, None, team.size)
    for number, step in islice(enumerate(passes, done), steps - done):
        student.refresh()
        for place, error in _losses(student, step):
            missed[place] += 0.1 * (error - missed[place]) if number else error - missed[place]
        optimiser.step(number / steps, limit=len(missed))
        if (number + 1) % MEET_EVERY == 0 or number + 1 == steps:
            team.average([weight for _, weight in student.parameters()])
        if not team.leads:
            continue
        mean, rate = sum(missed) / len(missed), progress.rate * len(step.tokens) * team.size
        progress.add(1, f"{mean:.3f} of the variance missed, {rate:,.0f} tok/s")
        if (number + 1) % _KEEP_EVERY == 0 or number + 1 == steps:
            layers = checkpoint.packed(student.layers)
            checkpoint.save(path, {"step": number + 1, "layers": layers, "optimiser": optimiser.state()})
    if team.leads:
        progress.end()
    return missed


def _losses(student: Student, step: Step) -> Iterator[tuple[int, float]]:
    """Adds each layer's gradient as the teacher's pass comes by; yields its place and the share it misses."""
    trunk = student.trunk
    with torch.no_grad():
        hidden = trunk.embed(torch.from_numpy(step.tokens).to(trunk.device))
        turns = places(step.documents, trunk.device)
    for index, layer in enumerate(trunk.layers):
        with torch.no_grad():
            hidden = trunk.attend(layer, hidden, step.documents, turns)
            inputs = norm(hidden, layer.ffn_norm)
            wanted = trunk.dense(layer, inputs.to(trunk.dtype))
            hidden = hidden + wanted
        if index < student.geometry.dense:
            continue
        found, load = student.mix(index, inputs)
        with torch.no_grad():
            weights = evened(wanted)
            difference, whole = (found - wanted) * weights, (wanted * weights).square().sum()
            gradient = difference * weights * (2 / whole)
            missed = float(difference.square().sum() / whole)
        even = load.balance * _BALANCE + load.restless(RHO) * _RESTLESS
        torch.autograd.backward([found, even], [gradient, torch.ones_like(even)])
        yield index - student.geometry.dense, missed
