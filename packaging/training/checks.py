"""Checks of what is computed by hand, against PyTorch and the `gguf` package: `build --tiny` runs them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from training import blocks
from training.experts import Experts, Plan, dense
from training.head import Targets, divergence, summary
from training.progress import say
from training.rounding import rounded_
from training.trunk import Trunk

Tensor = torch.Tensor


def run() -> None:
    """Raises AssertionError when one fails."""
    torch.manual_seed(0)
    for check in (_experts, _divergence, _leaning, _rounding):
        check()
        say(f"check         {check.__name__[1:]}: right")


def _experts() -> None:
    """The sparse sum and its four gradients are those of the dense one."""
    n, experts, k, width, out = 150, 16, 4, 32, 96
    weights = [torch.randn(experts, 2 * width, out) / 10, torch.randn(experts, out, width) / 10]
    leaves = [torch.randn(n, out), torch.randn(n, experts), *weights]

    def sparse(inputs: Tensor, share: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        used = (gate_up.detach(), down.detach())
        return cast(Tensor, Experts.apply(inputs, share, Plan(chosen, experts), used, gate_up, down))

    found = []
    for function in (sparse, dense):
        inputs, scores, gate_up, down = (leaf.clone().requires_grad_(True) for leaf in leaves)
        share, chosen = scores.softmax(1).topk(k, dim=1)
        result = function(inputs, share * 8, chosen, gate_up, down)
        result.square().sum().backward()
        found.append([result.detach(), *(leaf.grad for leaf in (inputs, scores, gate_up, down))])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def _divergence() -> None:
    """The gradient by hand is that of the same loss in a graph."""
    n, width, vocabulary = 40, 24, 1000
    embedding = torch.randn(vocabulary, width)
    head: Any = SimpleNamespace(
        embedding=embedding, dtype=torch.float32, logits=lambda final: final @ embedding.t()
    )
    ids, logp, tail = summary(torch.randn(n, vocabulary) * 3)
    targets, weights = Targets(ids, logp, tail), torch.rand(n) / n
    final = torch.randn(n, width, requires_grad=True)
    loss, gradient = divergence(cast(Trunk, head), final.detach(), targets, weights)
    logq = head.logits(final).log_softmax(1).gather(1, ids)
    q_tail = (1 - logq.exp().sum(1)).log()
    kl = (logp.exp() * (logp - logq)).sum(1) + tail.exp() * (tail - q_tail)
    whole = (kl * weights).sum()
    whole.backward()
    assert abs(loss - float(whole.detach())) < 1e-3 * abs(loss), (loss, whole)
    torch.testing.assert_close(gradient, cast(Tensor, final.grad), rtol=1e-3, atol=1e-5)


def _leaning() -> None:
    """The token that follows gets its share, the others give in proportion; nothing moves where it is not
    listed."""
    ids, logp, tail = summary(torch.randn(3, 1000) * 3)
    plain = Targets(ids, logp, tail)
    found = plain.leaning(torch.tensor([int(ids[0, 5]), -1, int(ids[2, 0])]), 0.3)
    torch.testing.assert_close(found.logp.exp().sum(1) + found.tail.exp(), torch.ones(3))
    expected = logp.exp()
    expected[[0, 2]] *= 0.7
    expected[0, 5] += 0.3
    expected[2, 0] += 0.3
    torch.testing.assert_close(found.logp.exp(), expected)
    assert torch.equal(found.logp[1], logp[1])
    assert torch.equal(found.tail[1], tail[1])


def _rounding() -> None:
    """What training multiplies is what the file will hold, bit for bit."""
    values = torch.randn(2048, 64)
    values[0], values[1, 3], values[1, 9] = 0.0, 4.5, -4.5
    values[2:200] = (values[2:200] * 2).round() / 2
    rounded_(out := torch.empty_like(values), values)
    assert np.array_equal(out.numpy(), blocks.decode(blocks.encode(values.numpy())))
