"""Cuts the teacher's feed-forward layers into experts, layer by layer over a sample of its own
activations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from training.geometry import Geometry
from training.groups import Groups, grouped
from training.progress import Progress
from training.shelf import Shelf
from training.student import Moe
from training.trunk import Layer, Trunk, norm, places

Tensor = torch.Tensor
_RIDGE = 0.02  # of the inputs' mean square
_NEARLY = 1.03  # of the least error: within it the sharpest router is taken, for drafts with few experts
_HEATS = (0.5, 0.75, 1.0, 1.4, 2.0, 2.8)


@dataclass(frozen=True)
class Cut:
    """The first weights of every layer; `scale` is what the routing weights are multiplied by. For each
    layer `error` of the routed model and `oracle` of the same groups chosen by what they contribute, as
    shares of the variance."""

    layers: list[Moe]
    scale: float
    error: list[float]
    oracle: list[float]


@torch.no_grad()  # not inference mode: its tensors could not be trained
def cut(trunk: Trunk, shelf: Shelf, geometry: Geometry, seed: int) -> Cut:
    progress = Progress("cutting", len(geometry.moe_layers), "layers")
    tokens = torch.from_numpy(shelf.tokens.astype(np.int64)).to(trunk.device)
    documents = shelf.lengths.tolist()
    turns, hidden = places(documents, trunk.device), trunk.embed(tokens)
    layers, masses, errors, oracles = list[Moe](), list[float](), list[float](), list[float]()
    for index, layer in enumerate(trunk.layers):
        hidden = trunk.attend(layer, hidden, documents, turns)
        if index in geometry.moe_layers:
            inputs = norm(hidden, layer.ffn_norm)
            moe, mass, error, oracle = _cut(trunk, layer, inputs, geometry, seed + index)
            layers.append(moe)
            masses.append(mass)
            errors.append(error)
            oracles.append(oracle)
            progress.add(1, f"layer {index}: {error:.3f} of the variance missed, {oracle:.3f} by an oracle")
        hidden = trunk.feed(layer, hidden)
    # One scale for all layers; what a layer's router leaves to the experts it does not choose moves into
    # its down weights.
    mean = float(np.mean(masses))
    for moe, mass in zip(layers, masses, strict=True):
        moe.down.mul_(mean / mass)
    progress.end(f"missed {np.mean(errors):.3f}, oracle {np.mean(oracles):.3f}")
    return Cut(layers, geometry.used / mean, errors, oracles)


def _cut(
    trunk: Trunk, layer: Layer, inputs: Tensor, geometry: Geometry, seed: int
) -> tuple[Moe, float, float, float]:
    hidden = trunk.activations(layer, inputs.to(trunk.dtype)).float()
    gate, up = layer.gate_up.float().chunk(2)
    down = layer.down.float()
    hidden *= evened(hidden @ down.t())
    strength = hidden.abs() * down.norm(dim=0)
    groups = grouped(strength.cpu().numpy(), geometry, seed)
    members = torch.from_numpy(groups.members).to(trunk.device)
    shared = torch.from_numpy(groups.shared).to(trunk.device)
    contribution = strength.square()[:, members].sum(2)  # [tokens, experts]
    missing = (hidden @ down.t()) - hidden[:, shared] @ down[:, shared].t()
    router = _router(inputs, contribution)
    scores = inputs @ router.t()
    best = _chosen(contribution, geometry)
    oracle = _error(hidden, down, members, missing, best, _once(hidden, members, best))
    chosen = _chosen(scores, geometry)
    each = _once(hidden, members, chosen)
    found = [_tempered(hidden, down, members, missing, scores, chosen, each, heat) for heat in _HEATS]
    enough = _NEARLY * min(error for *_, error in found)
    heat, mass, factor, error = max(trial for trial in found if trial[-1] <= enough)
    moe = Moe(
        router * heat,
        torch.cat((gate[members], up[members]), dim=1),
        (down * each * factor)[:, members].permute(1, 0, 2).contiguous(),
        torch.cat((gate[shared], up[shared])),
        down[:, shared].contiguous(),
    )
    whole = float((hidden @ down.t()).square().mean())
    return moe, mass, error / whole, oracle / whole


def evened(outputs: Tensor) -> Tensor:
    """What each token is multiplied by [n, 1] so that all count alike: a few first tokens have outputs
    hundreds of times longer than the rest, and would be all that a layer learns."""
    energy = outputs.square().sum(1, keepdim=True)
    return energy.clamp(min=energy.median()).rsqrt()


def _router(inputs: Tensor, contribution: Tensor) -> Tensor:
    """Ridge regression of the groups' log contribution, each token's mean taken out: softmax does not see
    it."""
    wanted = (contribution + 1e-3 * contribution.mean()).log().mul_(0.5)
    wanted -= wanted.mean(1, keepdim=True)
    square = inputs.t() @ inputs
    square.diagonal().add_(_RIDGE * float(square.diagonal().mean()))
    return torch.linalg.solve(square, inputs.t() @ wanted).t().contiguous()


def _chosen(scores: Tensor, geometry: Geometry) -> Tensor:
    """[tokens, experts], 1 where an expert is used."""
    return torch.zeros_like(scores).scatter_(1, scores.topk(geometry.used, dim=1).indices, 1.0)


def _times(members: Tensor, weights: Tensor, n: int) -> Tensor:
    """How often each neuron counts for each token [tokens, n], `weights` [tokens, experts]."""
    reach = torch.zeros(len(members), n, device=weights.device).scatter_(1, members, 1.0)
    return weights @ reach


def _once(hidden: Tensor, members: Tensor, chosen: Tensor) -> Tensor:
    """A factor for each neuron [n] under which one that several chosen groups hold counts once on average."""
    times, power = _times(members, chosen, hidden.shape[1]), hidden.square()
    return (power * times).sum(0) / (power * times.square()).sum(0).clamp_(min=1e-9)


def _error(
    hidden: Tensor, down: Tensor, members: Tensor, missing: Tensor, weights: Tensor, each: Tensor
) -> float:
    found = (hidden * _times(members, weights, hidden.shape[1]) * each) @ down.t()
    return float((found - missing).square().mean())


def _tempered(
    hidden: Tensor, down: Tensor, members: Tensor, missing: Tensor, scores: Tensor, chosen: Tensor,
    each: Tensor, heat: float,
) -> tuple[float, float, float, float]:  # fmt: skip
    """(heat, share of the softmax that goes to the chosen, best factor on `down`, error) at one
    temperature."""
    weights = (scores * heat).softmax(1) * chosen
    mass = float(weights.sum(1).mean())
    weights *= weights.new_tensor(float(chosen[0].sum()) / mass)
    found = (hidden * _times(members, weights, hidden.shape[1]) * each) @ down.t()
    factor = float((found * missing).sum() / found.square().sum())
    return heat, mass, factor, float((factor * found - missing).square().mean())


__all__ = ["Cut", "Groups", "cut"]
