"""Routed experts, computed only where tokens chose them, with a backward pass of their own.

(Token, slot) pairs are sorted by expert. Each expert's run is padded to a multiple of 64 rows, so that
the matrix library, which prepares a kernel for every new shape, sees few. The routing weight multiplies
the hidden values, so what comes out is only summed, and pairs return to their token through the inverse
permutation: a gather, where adding at indices would serialise.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 -- its usual name

Tensor = torch.Tensor
_ROWS = 64


class Plan:
    """Where each (token, slot) pair lies among the rows sorted by expert."""

    def __init__(self, chosen: Tensor, experts: int) -> None:
        """`chosen` I64 [n, k]: the experts of each token."""
        flat = chosen.flatten()
        order = torch.argsort(flat, stable=True)
        self.counts = torch.bincount(flat, minlength=experts)
        padded = (self.counts + _ROWS - 1) // _ROWS * _ROWS
        ends = padded.cumsum(0)
        first = torch.cat((ends.new_zeros(1), self.counts.cumsum(0)[:-1]))
        sorted_expert = flat[order]
        row = torch.arange(len(flat), device=flat.device) + (ends - padded - first)[sorted_expert]
        self.rows = int(ends[-1])
        self.row_of = torch.empty_like(flat).index_copy_(0, order, row)
        self.token_of = torch.zeros(self.rows, dtype=torch.long, device=flat.device)
        self.token_of[row] = order // chosen.shape[1]
        stops = ends.tolist()
        self.runs = [
            (expert, start, stop)
            for expert, (start, stop) in enumerate(zip([0, *stops[:-1]], stops, strict=True))
            if stop > start
        ]

    def spread(self, weights: Tensor) -> Tensor:
        """`weights` [n, k] by row; padding has none."""
        return weights.new_zeros(self.rows).index_copy_(0, self.row_of, weights.flatten())

    def gather(self, rows: Tensor, slots: int) -> Tensor:
        """The sum of each token's rows, F32 [n, columns]; added up in F32, rounded once to the rows' type: a
        twentieth of the time of a sum that widens them first."""
        return F.embedding_bag(self.row_of.view(-1, slots), rows, mode="sum").float()


class Experts(torch.autograd.Function):
    """sum over a token's experts of weight * down(silu(gate x) * up x).

    `inputs` [n, width] and the two used matrices in the compute type: `gate_up` [experts, 2 m, width],
    `down` [experts, width, m]. Gradients go to the F32 masters, which may hold other numbers (rounding is
    passed straight through). `weights` F32 [n, k].
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weights: Tensor, plan: Plan, used: tuple[Tensor, Tensor], *_masters: Tensor
    ) -> Tensor:
        gate_up, down = used
        sorted_inputs = inputs.index_select(0, plan.token_of)
        both = inputs.new_empty(plan.rows, gate_up.shape[1])
        for expert, start, stop in plan.runs:
            torch.mm(sorted_inputs[start:stop], gate_up[expert].t(), out=both[start:stop])
        gate, up = both.chunk(2, dim=1)
        by_row = plan.spread(weights)
        hidden = F.silu(gate).mul_(up)
        weighted = hidden * by_row[:, None].to(hidden.dtype)
        out = inputs.new_empty(plan.rows, inputs.shape[1])
        for expert, start, stop in plan.runs:
            torch.mm(weighted[start:stop], down[expert].t(), out=out[start:stop])
        ctx.plan, ctx.used, ctx.slots = plan, used, weights.shape[1]
        ctx.save_for_backward(sorted_inputs, both, hidden, weighted, by_row)
        return plan.gather(out, weights.shape[1])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        sorted_inputs, both, hidden, weighted, by_row = ctx.saved_tensors
        plan, (gate_up, down) = ctx.plan, ctx.used
        arriving = grads[0].to(sorted_inputs.dtype).index_select(0, plan.token_of)
        to_hidden = torch.empty_like(hidden)
        to_down = torch.zeros_like(down)
        for expert, start, stop in plan.runs:
            torch.mm(arriving[start:stop], down[expert], out=to_hidden[start:stop])
            torch.mm(arriving[start:stop].t(), weighted[start:stop], out=to_down[expert])
        to_weights = (to_hidden.float() * hidden.float()).sum(1).index_select(0, plan.row_of)
        to_hidden = to_hidden * by_row[:, None].to(hidden.dtype)
        gate, up = both.chunk(2, dim=1)
        bent = torch.sigmoid(gate)
        to_both = torch.empty_like(both)
        torch.mul(to_hidden * up, bent * (1 + gate * (1 - bent)), out=to_both[:, : gate.shape[1]])
        torch.mul(to_hidden, gate * bent, out=to_both[:, gate.shape[1] :])
        to_gate_up = torch.zeros_like(gate_up)
        to_inputs = torch.empty_like(sorted_inputs) if ctx.needs_input_grad[0] else None
        for expert, start, stop in plan.runs:
            torch.mm(to_both[start:stop].t(), sorted_inputs[start:stop], out=to_gate_up[expert])
            if to_inputs is not None:
                torch.mm(to_both[start:stop], gate_up[expert], out=to_inputs[start:stop])
        back = None if to_inputs is None else plan.gather(to_inputs, ctx.slots).to(sorted_inputs.dtype)
        return back, to_weights.view(-1, ctx.slots), None, None, to_gate_up.float(), to_down.float()


class Linear(torch.autograd.Function):
    """x W^T with the used numbers, its gradient to the F32 master. x [n, in], W [out, in]."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, used: Tensor, _master: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, used)
        return F.linear(inputs, used)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        inputs, used = ctx.saved_tensors
        back = grads[0] @ used if ctx.needs_input_grad[0] else None
        return back, None, (grads[0].t() @ inputs).float()


def dense(inputs: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The same sum with every expert computed for every token: for comparison."""
    experts, twice, width = gate_up.shape
    both = F.linear(inputs, gate_up.reshape(-1, width)).view(-1, experts, twice)
    gate, up = both.chunk(2, dim=2)
    mask = weights.new_zeros(len(inputs), experts).scatter(1, chosen, weights).to(inputs.dtype)
    hidden = F.silu(gate) * up * mask[:, :, None]
    return F.linear(hidden.flatten(1), down.permute(1, 0, 2).reshape(width, -1)).float()
