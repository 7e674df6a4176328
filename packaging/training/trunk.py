"""The frozen parts of the model, from the teacher's GGUF: embedding, attention, norms, dense feed-forward."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import gguf
import torch
import torch.nn.functional as F  # noqa: N812 -- its usual name

from training.geometry import HEAD, N_EMBD, N_HEAD, N_HEAD_KV, N_LAYER
from training.stored import Stored

EPS, THETA = 1e-5, 100_000.0
Tensor = torch.Tensor


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, rows are outputs. `qkv` [960, 576], `out` [576, 576], `gate_up` [3072, 576]
    with all gates first, `down` [576, 1536]; matrices in the compute type, norms F32."""

    attn_norm: Tensor
    qkv: Tensor
    out: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Trunk:
    """The teacher's weights on a device; `dtype` is the type of matrix products, sums stay F32."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype) -> None:
        self.path, self.device, self.dtype = path, device, dtype
        stored = Stored(path)

        def load(*names: str) -> Tensor:
            whole = torch.cat([torch.from_numpy(stored.values(f"{name}.weight")) for name in names])
            return whole.to(device, dtype if whole.dim() > 1 else torch.float32)

        self.embedding = load("token_embd")
        self.output_norm = load("output_norm")
        self.layers = [
            Layer(
                attn_norm=load(f"{at}attn_norm"),
                qkv=load(f"{at}attn_q", f"{at}attn_k", f"{at}attn_v"),
                out=load(f"{at}attn_output"),
                ffn_norm=load(f"{at}ffn_norm"),
                gate_up=load(f"{at}ffn_gate", f"{at}ffn_up"),
                down=load(f"{at}ffn_down"),
            )
            for at in (f"blk.{index}." for index in range(N_LAYER))
        ]

    def shipped(self, path: Path, kind: str) -> Trunk:
        """The same with the embedding (and head) as the file will hold it: rounded to `kind`, or "copy"."""
        if kind == "copy":
            return self
        kept, rounding = copy(self), gguf.GGMLQuantizationType[kind]
        blocks = gguf.quantize(Stored(path).values("token_embd.weight"), rounding)
        values = torch.from_numpy(gguf.dequantize(blocks, rounding))
        kept.embedding = values.to(self.device, self.dtype)
        return kept

    def embed(self, tokens: Tensor) -> Tensor:
        """Hidden states F32 [n, 576] of token ids [n]."""
        return F.embedding(tokens, self.embedding).float()

    def attend(self, layer: Layer, hidden: Tensor, documents: Sequence[int], turns: Turns) -> Tensor:
        """`hidden` [n, 576] after attention; `documents` are the lengths of the pieces that see only
        themselves.

        One call per document: no padding, no mask, and the causal kernel skips what is not to be seen.
        """
        rows = F.linear(norm(hidden, layer.attn_norm).to(self.dtype), layer.qkv)
        query, key, value = rows.split((N_EMBD, N_HEAD_KV * HEAD, N_HEAD_KV * HEAD), dim=1)
        query = turns.apply(query.view(-1, N_HEAD, HEAD))
        key = turns.apply(key.view(-1, N_HEAD_KV, HEAD)).repeat_interleave(N_HEAD // N_HEAD_KV, dim=1)
        value = value.view(-1, N_HEAD_KV, HEAD).repeat_interleave(N_HEAD // N_HEAD_KV, dim=1)
        seen = [
            F.scaled_dot_product_attention(*(part.transpose(0, 1)[None] for part in parts), is_causal=True)[
                0
            ].transpose(0, 1)
            for parts in zip(*(rows.split(list(documents)) for rows in (query, key, value)), strict=True)
        ]
        return hidden + F.linear(torch.cat(seen).reshape(-1, N_EMBD), layer.out).float()

    def feed(self, layer: Layer, hidden: Tensor) -> Tensor:
        """`hidden` after the teacher's own feed-forward layer."""
        return hidden + self.dense(layer, norm(hidden, layer.ffn_norm).to(self.dtype))

    def dense(self, layer: Layer, inputs: Tensor) -> Tensor:
        """What the teacher's feed-forward layer adds, F32 [n, 576], for normalised `inputs`."""
        return F.linear(self.activations(layer, inputs), layer.down).float()

    def activations(self, layer: Layer, inputs: Tensor) -> Tensor:
        """Hidden values [n, 1536] of the teacher's feed-forward layer."""
        gate, up = F.linear(inputs, layer.gate_up).chunk(2, dim=1)
        return F.silu(gate).mul_(up) if not gate.requires_grad else F.silu(gate) * up

    def final(self, hidden: Tensor) -> Tensor:
        """The normalised state, F32 [n, 576], that the head multiplies."""
        return norm(hidden, self.output_norm)

    def logits(self, final: Tensor) -> Tensor:
        """F32 [n, 49152]; rounded to the compute type before."""
        return F.linear(final.to(self.dtype), self.embedding).float()


def norm(hidden: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(hidden, (N_EMBD,), weight, EPS)


class Turns:
    """Rotary positions in llama's order: numbers 2i and 2i+1 of a head turn together."""

    def __init__(self, positions: Tensor) -> None:
        """`positions` [n], each token's place in its document."""
        inverse = THETA ** (-torch.arange(0, HEAD, 2, device=positions.device, dtype=torch.float64) / HEAD)
        angles = positions.double()[:, None] * inverse
        self._cos, self._sin = (part.float()[:, None, :] for part in (angles.cos(), angles.sin()))

    def apply(self, heads: Tensor) -> Tensor:
        """`heads` [n, heads, 64], turned."""
        even, odd = heads.float().unflatten(-1, (HEAD // 2, 2)).unbind(-1)
        turned = torch.stack((even * self._cos - odd * self._sin, even * self._sin + odd * self._cos), dim=-1)
        return turned.flatten(-2).to(heads.dtype)


def places(documents: Sequence[int], device: torch.device) -> Turns:
    """The turns of documents that lie one behind the other."""
    return Turns(torch.cat([torch.arange(length, device=device) for length in documents]))
