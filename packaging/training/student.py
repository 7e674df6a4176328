"""The model in training: the teacher's frozen trunk, and feed-forward layers of experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F  # noqa: N812 -- its usual name

from training.experts import Experts, Linear, Plan
from training.geometry import N_EMBD, Geometry
from training.rounding import rounded_
from training.trunk import Trunk, norm, places

Tensor = torch.Tensor
RHO = 0.57  # what routers are held to; published routes of large models lie between 0.55 and 0.8
_BACK = 3  # tokens before, so that a window is the four of rho(4)
MATRICES = ("gate_up", "down", "shared_gate_up", "shared_down")


@dataclass
class Moe:
    """Weights of one layer, F32. `router` [experts, 576], `gate_up` [experts, 2 m, 576], `down` [experts,
    576, m], `shared_gate_up` [2 s, 576], `shared_down` [576, s]; `used` are the numbers that are
    multiplied."""

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared_gate_up: Tensor
    shared_down: Tensor
    used: dict[str, Tensor] = field(default_factory=dict)

    def state(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).detach() for name in ("router", *MATRICES)}

    def refresh(self, dtype: torch.dtype, *, quantised: bool) -> None:
        """Brings the used numbers up to the masters: as they are, or as a file of Q4_0 would hold them."""
        for name in MATRICES:
            master = getattr(self, name).detach()
            if name not in self.used:
                self.used[name] = torch.empty_like(master, dtype=dtype)
            if quantised and master.shape[-1] % 32 == 0:
                rounded_(self.used[name], master)
            else:
                self.used[name].copy_(master)


@dataclass(frozen=True)
class Load:
    """What the router of one layer did: `chosen` I64 [n, k], `counts` [experts] pairs, the losses that even
    it out, `novelty` (probability of experts that the tokens just before did not use) and `rho`, distinct
    experts / (4 k) in four tokens. Documents lie one behind the other: the first tokens of one count as if
    they followed the last of another, one place in some hundred."""

    chosen: Tensor
    counts: Tensor
    balance: Tensor
    sharpness: Tensor
    novelty: Tensor
    rho: Tensor

    def restless(self, wanted: float) -> Tensor:
        """The loss that brings rho(4) down to `wanted` and rests there: novelty, as much as it is missed."""
        return self.novelty * (self.rho - wanted).clamp(min=0.0)


class Student:
    """`scale` multiplies the routing weights, one number for all layers, as the file's header holds it."""

    def __init__(self, trunk: Trunk, geometry: Geometry, layers: Sequence[Moe], scale: float) -> None:
        self.trunk, self.geometry, self.scale = trunk, geometry, scale
        self.layers = list(layers)
        for moe in self.layers:
            for name in ("router", *MATRICES):
                getattr(moe, name).requires_grad_(True)

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        for moe in self.layers:
            for name in ("router", *MATRICES):
                yield name, getattr(moe, name)

    def refresh(self, *, quantised: bool = False) -> None:
        for moe in self.layers:
            moe.refresh(self.trunk.dtype, quantised=quantised)

    def forward(self, tokens: Tensor, documents: Sequence[int], used: int = 0) -> tuple[Tensor, list[Load]]:
        """The final state F32 [n, 576] before the head, and each layer's load. `used`: experts per token,
        0 all."""
        trunk, loads = self.trunk, list[Load]()
        turns = places(documents, trunk.device)
        hidden = trunk.embed(tokens)
        for index, layer in enumerate(trunk.layers):
            hidden = trunk.attend(layer, hidden, documents, turns)
            if index < self.geometry.dense:
                hidden = trunk.feed(layer, hidden)
            else:
                added, load = self.mix(index, norm(hidden, layer.ffn_norm), used)
                hidden = hidden + added
                loads.append(load)
        return trunk.final(hidden), loads

    def mix(self, index: int, inputs: Tensor, used: int = 0) -> tuple[Tensor, Load]:
        """What layer `index` adds, F32 [n, 576], for normalised F32 `inputs`."""
        moe = self.layers[index - self.geometry.dense]
        probabilities = torch.softmax(scores := F.linear(inputs, moe.router), dim=1)
        weights, chosen = probabilities.topk(used or self.geometry.used, dim=1)
        plan = Plan(chosen, self.geometry.experts)
        rounded = inputs.to(self.trunk.dtype)
        routed = Experts.apply(
            rounded,
            weights * self.scale,
            plan,
            (moe.used["gate_up"], moe.used["down"]),
            moe.gate_up,
            moe.down,
        )
        both = Linear.apply(rounded, moe.used["shared_gate_up"], moe.shared_gate_up)
        gate, up = both.chunk(2, dim=1)
        shared = Linear.apply(F.silu(gate) * up, moe.used["shared_down"], moe.shared_down)
        share = plan.counts / chosen.numel()
        recent, rho = _neighbours(chosen, self.geometry.experts)
        load = Load(
            chosen,
            plan.counts,
            (probabilities.mean(0) * share).sum() * self.geometry.experts,
            scores.logsumexp(1).square().mean(),
            1 - (probabilities[_BACK:] * recent).sum(1).mean(),
            rho,
        )
        return routed + shared.float(), load


@torch.no_grad()
def _neighbours(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Which experts the `_BACK` tokens before each used, [n - _BACK, experts], 1 or 0, from the token `_BACK`
    on; and rho over windows of one token more."""
    seen = torch.zeros(len(chosen), experts, device=chosen.device).scatter_(1, chosen, 1.0)
    recent = torch.stack([seen[at : len(seen) - _BACK + at] for at in range(_BACK)]).amax(0)
    distinct = torch.maximum(recent, seen[_BACK:]).sum(1).mean()
    return recent, distinct / (chosen.shape[1] * (_BACK + 1))


def weights_of(geometry: Geometry) -> int:
    """How many numbers are trained."""
    neurons = geometry.experts * geometry.width + geometry.shared
    return len(geometry.moe_layers) * N_EMBD * (geometry.experts + 3 * neurons)


def empty(geometry: Geometry, device: torch.device) -> Moe:
    """A layer of zeros."""
    experts, width, shared = geometry.experts, geometry.width, geometry.shared
    shapes = (
        (experts, N_EMBD),
        (experts, 2 * width, N_EMBD),
        (experts, N_EMBD, width),
        (2 * shared, N_EMBD),
        (N_EMBD, shared),
    )
    return Moe(*(torch.zeros(shape, device=device) for shape in shapes))
