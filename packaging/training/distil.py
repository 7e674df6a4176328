"""Distillation: the whole model against the teacher's distribution, its last part with the file's
rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from time import monotonic

import numpy as np
import torch

from training import checkpoint
from training.head import Agreement, Targets, divergence
from training.optimiser import Optimiser
from training.progress import Progress, say
from training.shelf import FRAME, Reader, Shelf, Step
from training.student import RHO, Student
from training.team import MEET_EVERY, Team


@dataclass(frozen=True)
class Course:
    """How the distillation goes. `steps` 0: as many as `minutes` allow, counted once, from the first
    steps' time.

    `spoken` is the share of what a place is taught that goes to the token which did follow: conversations are
    drawn as a chat draws, colder than the teacher's own distribution. `accumulate` passes make a step.
    `quantised` is the share of the steps, at the end, that train with Q4_0's rounding. `draft_share` of the
    passes also learn to answer with `draft_used` experts. `restless` is how firmly routers are held to few
    distinct experts in four tokens, `rho` of all they could use, as those of large models do: a cache of a
    quarter of the experts then holds most of what is asked for.
    """

    minutes: float
    steps: int = 0
    accumulate: int = 1
    quantised: float = 0.4
    balance: float = 0.02
    sharpness: float = 1e-4
    restless: float = 2.0
    rho: float = RHO
    spoken: float = 0.3
    draft_share: float = 0.0
    draft_used: int = 2
    keep_minutes: float = 8.0
    look_minutes: float = 15.0


_TIMED = 6  # steps that are timed before their number is settled
_SLOWER = 1.12  # of all steps against the first: rounding, looks at the held-out sets, checkpoints


class Distillation:
    """Trains `student` on what `reader` hands out, as a member of `team`; goes on from `path`. Only the
    leader's checkpoint is kept: its moments stand in for the others' when a run goes on."""

    def __init__(
        self,
        student: Student,
        shelf: Shelf,
        reader: Reader,
        course: Course,
        held_out: Mapping[str, Shelf],
        path: Path,
        seed: int,
        team: Team | None = None,
    ) -> None:
        self._student, self._shelf, self._reader = student, shelf, reader
        self._course, self._held_out, self._path, self._seed = course, held_out, path, seed
        self._optimiser, self._team = Optimiser(student), team or Team()
        self._step, self._total, self._spent = 0, course.steps, 0.0
        self._rho = RHO
        self._counts = torch.zeros(len(student.layers), student.geometry.experts, device=student.trunk.device)
        if path.exists():
            self._restore()

    def run(self) -> None:
        course, team, tokens = self._course, self._team, 0
        started, kept, looked = monotonic(), monotonic(), monotonic()
        before = self._spent
        progress: Progress | None = None
        skip = self._step * course.accumulate * team.size
        passes = islice(self._reader.steps(skip=skip), team.rank, None, team.size)
        while self._total == 0 or self._step < self._total:
            done = self._step / self._total if self._total else 0.0
            self._student.refresh(quantised=done >= 1 - course.quantised)
            kl = 0.0
            for step in islice(passes, course.accumulate):
                kl += self._learn(step) / course.accumulate
                tokens += len(step.tokens)
            length = self._optimiser.step(done)
            self._step += 1
            self._spent = before + monotonic() - started
            if self._total == 0 and self._step >= _TIMED:
                self._settle()
            meets = self._step % MEET_EVERY == 0 or self._step == self._total
            if meets:
                team.average([weight for _, weight in self._student.parameters()])
            if not team.leads:
                continue
            if progress is None and self._total:
                progress = Progress("distillation", self._total, "steps", self._step)
            elif progress is not None:
                rate = team.size * tokens / (monotonic() - started)
                figures = f"KL {kl:.4f}  gradient {length:.2f}  {rate:,.0f} tok/s"
                progress.add(1, f"{figures}  {self._balance()}  rho {self._rho:.3f}")
            if meets and monotonic() - kept > 60 * course.keep_minutes:
                self._keep()
                kept = monotonic()
            if meets and monotonic() - looked > 60 * course.look_minutes:
                self.look()
                looked = monotonic()
        if team.leads:
            self._keep()

    def look(self, tokens: int = 4096) -> dict[str, dict[str, float]]:
        """Says how the student does on the held-out sets, with all experts and with a draft's."""
        quantised = self._total > 0 and self._step >= (1 - self._course.quantised) * self._total
        self._student.refresh(quantised=quantised)
        found = {}
        for name, shelf in self._held_out.items():
            for used in (0, self._course.draft_used):
                label = f"{name}, k {used or self._student.geometry.used}"
                figures = found[label] = examine(self._student, shelf.first(tokens), used)
                say("  " + label + ": " + "  ".join(f"{key} {value:.4f}" for key, value in figures.items()))
        return found

    def _learn(self, step: Step) -> float:
        """Adds one pass to the gradients; returns its divergence."""
        student, course = self._student, self._course
        device = student.trunk.device
        tokens = torch.from_numpy(step.tokens).to(device)
        following = tokens.roll(-1)
        following[-1] = -1  # where a document ends the loss does not count, but a pass may cut one
        targets = Targets.of(self._shelf, step.rows, device).leaning(following, course.spoken)
        weights = torch.from_numpy(step.weights).to(device)
        weights /= weights.sum().clamp(min=1e-6)
        luck = np.random.default_rng((self._seed, self._step, int(step.rows[0]))).random()
        kl = 0.0
        for used in (0, course.draft_used) if luck < course.draft_share else (0,):
            final, loads = student.forward(tokens, step.documents, used)
            with torch.no_grad():
                loss, gradient = divergence(student.trunk, final.detach(), targets, weights)
            even = torch.stack([load.balance for load in loads]).sum() * course.balance
            even = even + torch.stack([load.sharpness for load in loads]).sum() * course.sharpness
            if not used:
                restless = torch.stack([load.restless(course.rho) for load in loads]).sum()
                even = even + restless * course.restless
                self._rho += 0.05 * (float(torch.stack([load.rho for load in loads]).mean()) - self._rho)
            share = 1 / course.accumulate
            torch.autograd.backward([final, even], [gradient * share, even.new_tensor(share)])
            if not used:
                kl = loss
                counts = torch.stack([load.counts for load in loads])
                self._counts.mul_(0.95).add_(counts, alpha=0.05)
        return kl

    def _balance(self) -> str:
        fair = self._counts / self._counts.mean(1, keepdim=True).clamp(min=1e-9)
        return f"load {float(fair.min()):.2f} to {float(fair.max()):.2f}"

    def _settle(self) -> None:
        each = self._spent / self._step * _SLOWER
        self._total = self._team.agree(max(self._step + 1, int(60 * self._course.minutes / each)))
        if self._team.leads:
            say(f"  {self._total} steps fit into {self._course.minutes:g} minutes")
            self._keep()  # their number is part of what a run that goes on must know

    def _keep(self) -> None:
        checkpoint.save(
            self._path,
            {
                "step": self._step,
                "total": self._total,
                "spent": self._spent,
                "counts": self._counts,
                "layers": checkpoint.packed(self._student.layers),
                "optimiser": self._optimiser.state(),
            },
        )

    def _restore(self) -> None:
        state = checkpoint.load(self._path, self._student.trunk.device)
        self._step, self._total, self._spent = state["step"], state["total"], state["spent"]
        self._counts = state["counts"]
        for moe, kept in zip(self._student.layers, state["layers"], strict=True):
            for name, values in kept.items():
                getattr(moe, name).data.copy_(values)
        self._optimiser.load(state["optimiser"])
        if self._team.leads:
            say(f"  goes on at step {self._step} of {self._total}")


@torch.inference_mode()
def examine(student: Student, shelf: Shelf, used: int = 0) -> dict[str, float]:
    """Divergence, perplexities and agreement with the teacher on `shelf`, frames not counted, and the
    load of the experts against a fair share, least and most over all layers. The student's used numbers
    must be fresh."""
    device = student.trunk.device
    agreement, counts = Agreement(), torch.zeros(len(student.layers), student.geometry.experts, device=device)
    for start, length in zip(shelf.starts, shelf.lengths, strict=True):
        rows = slice(int(start), int(start + length))
        tokens = torch.from_numpy(shelf.tokens[rows].astype(np.int64)).to(device)
        final, loads = student.forward(tokens, [int(length)], used)
        counted = torch.from_numpy((shelf.roles[rows] != FRAME).astype(np.float32)).to(device).roll(-1)
        counted[-1] = 0.0
        logits = student.trunk.logits(final)
        agreement.add(logits, Targets.of(shelf, rows, device), tokens.roll(-1), counted)
        counts += torch.stack([load.counts for load in loads])
    fair = counts / counts.mean(1, keepdim=True).clamp(min=1e-9)
    return {**agreement.as_dict(), "least": float(fair.min()), "most": float(fair.max())}
