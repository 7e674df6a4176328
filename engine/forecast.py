"""How fast a model will be, from bytes and bandwidths: estimates before the first run, as ranges.

A token reads the weights outside the experts, k experts per layer and the KV cache from memory, and from disk
what is not there. That is all these formulas know; the constants below say what they assume.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from engine.device import Device
from engine.model import ModelInfo

PROMPT = 1000  # tokens of the prompt that the prefill time is for
_CELLS = 1000  # of the KV cache, while tokens per second are counted

#: Share of experts in memory, of requests they answer: published routing of three models, `bench replay`.
_HITS = (
    (0.0, 0.0),
    (0.035, 0.38),
    (0.052, 0.476),
    (0.10, 0.60),
    (0.18, 0.75),
    (0.24, 0.83),
    (0.35, 0.91),
    (0.50, 0.977),
    (1.0, 1.0),
)
_DENSITY = (0.05, 0.25)  # a token's share of the experts: as in those models, and where habits end
_DOUBT = (0.05, 0.15)

# Of a documented bandwidth decode gets the first to the second part, of a measured one more.
_DOCUMENTED, _MEASURED = (0.5, 0.85), (0.7, 1.0)
_MAPPED = 0.3  # pages of a mapped file come one by one: a third of the disk's speed
_LAYER_S = (150e-6, 20e-6)  # of a layer's steps beside reading weights
_MEMORY_GUESS, _DISK_GUESS = 20_000_000_000, 500_000_000  # slow machines of these years

# Multiplications per second in a long prompt: per core by its instructions, per byte of a GPU's bandwidth.
_PER_CORE = (("avx512_vnni", 90e9), ("avx512bw", 60e9), ("avx2", 45e9), ("i8mm", 40e9), ("asimddp", 20e9))
_PER_CORE_ELSE = 8e9
_PER_GPU_BYTE = 60.0
_SPREAD = 2.0
_BITS = 4.8  # per weight, where a header does not say how many weights there are


@dataclass(frozen=True, slots=True)
class Range:
    """From the careful to the hopeful end; `low` <= `high`."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """`hit`: share of expert requests found in memory. `prefill_s`: seconds for a prompt of PROMPT tokens."""

    hit: Range
    tokens_per_s: Range
    prefill_s: Range
    read_bytes: Range
    reasons: dict[str, str]


def forecast(
    device: Device,
    model: ModelInfo,
    *,
    held_bytes: int,
    n_ctx: int,
    n_ubatch: int,
    on_gpu: bool,
    mapped: bool,
) -> Forecast:
    """`held_bytes` of the experts are in memory; `mapped`: the rest comes through the page cache."""
    hit = hit_rate(model, held_bytes)
    active = active_expert_bytes(model)
    misses = Range(active * (1 - hit.high), active * (1 - hit.low))
    memory, memory_reason = _memory_speed(device, on_gpu=on_gpu)
    disk, disk_reason = _disk_speed(device, mapped=mapped)
    cache = model.kv_bytes_per_token * min(_CELLS, n_ctx)
    read = model.size_bytes - model.expert_bytes - model.lookup_bytes + active + cache
    slow = read / memory.low + misses.high / disk.low + model.n_layer * _LAYER_S[0]
    fast = max(read / memory.high, misses.low / disk.high) + model.n_layer * _LAYER_S[1]
    return Forecast(
        hit=hit,
        tokens_per_s=Range(1 / slow, 1 / fast),
        prefill_s=_prefill(device, model, disk, held_bytes, n_ubatch, on_gpu=on_gpu),
        read_bytes=misses,
        reasons={
            "hit": "the share of experts in memory, by the routing of three published models",
            "tokens_per_s": f"{memory_reason}; {disk_reason}" if misses.high else memory_reason,
            "prefill_s": "multiplications, and each expert that is not in memory once per micro-batch",
            "read_bytes": "experts of a token that are not in memory",
        },
    )


def hit_rate(model: ModelInfo, held_bytes: int) -> Range:
    """What experts in memory will answer; all when all are there, or there are none."""
    if model.expert_bytes <= 0 or held_bytes >= model.expert_bytes or not model.is_moe:
        return Range(1.0, 1.0)
    share = max(0, held_bytes) / model.expert_bytes
    least, most = _DENSITY
    # Where a token asks for a large part of all experts, no habit can favour some of them.
    habit = min(1.0, max(0.0, (most - model.n_expert_used / model.n_expert) / (most - least)))
    middle = habit * _curve(share) + (1 - habit) * share
    doubt = _DOUBT[0] + (_DOUBT[1] - _DOUBT[0]) * (1 - habit)
    return Range(max(0.0, middle - doubt), min(1.0, middle + doubt * (1 - middle)))


def active_expert_bytes(model: ModelInfo) -> int:
    """Of the experts that one token asks for, all layers."""
    return model.expert_bytes * model.n_expert_used // model.n_expert if model.is_moe else 0


def _curve(share: float) -> float:
    for (left, low), (right, high) in itertools.pairwise(_HITS):
        if share <= right:
            return low + (high - low) * (share - left) / (right - left)
    return 1.0


def _memory_speed(device: Device, *, on_gpu: bool) -> tuple[Range, str]:
    speed = device.gpu_speed if on_gpu else device.memory_speed
    what = "the GPU's memory" if on_gpu and device.gpu_memory_bytes else "memory"
    if not speed:
        return _part(_MEMORY_GUESS, _DOCUMENTED), f"{what} of unknown speed, taken as {_gb(_MEMORY_GUESS)}"
    measured = not on_gpu and "memory.speed" in device.measured and not device.jetson
    words = f"{what} of {_gb(speed)}, {'measured' if measured else 'by its data sheet'}"
    return _part(speed, _MEASURED if measured else _DOCUMENTED), words


def _disk_speed(device: Device, *, mapped: bool) -> tuple[Range, str]:
    measured = "disk.read_speed" in device.measured
    speed = device.disk_speed or _DISK_GUESS
    known = "measured" if measured else "documented" if device.disk_speed else "a guess"
    part = _part(speed, _MEASURED if measured else _DOCUMENTED)
    if mapped:
        return Range(part.low * _MAPPED, part.high * _MAPPED), f"disk of {_gb(speed)}, {known}, page by page"
    return part, f"disk of {_gb(speed)}, {known}"


def _prefill(
    device: Device, model: ModelInfo, disk: Range, held_bytes: int, n_ubatch: int, *, on_gpu: bool
) -> Range:
    weights = _active_weights(model) * PROMPT
    if on_gpu:
        rate = (device.gpu_speed or _MEMORY_GUESS) * _PER_GPU_BYTE
    else:
        per_core = next((rate for name, rate in _PER_CORE if name in device.features), _PER_CORE_ELSE)
        rate = device.cores * per_core
    missing = max(0, model.expert_bytes - held_bytes) * math.ceil(PROMPT / n_ubatch)
    seconds = weights / rate
    return Range(max(seconds / _SPREAD, missing / disk.high), seconds * _SPREAD + missing / disk.low)


def _active_weights(model: ModelInfo) -> float:
    """Weights that a token is multiplied with; without the table that it only looks up."""
    read = model.size_bytes - model.expert_bytes - model.lookup_bytes + active_expert_bytes(model)
    bits = 8 * model.size_bytes / model.n_weights if model.n_weights else _BITS
    return read * 8 / bits


def _part(speed: int, part: tuple[float, float]) -> Range:
    return Range(speed * part[0], speed * part[1])


def _gb(speed: float) -> str:
    return f"{speed / 1e9:.3g} GB/s"
