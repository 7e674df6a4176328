"""`bench replay`: which share of expert requests policies would have found in memory, from recorded routing.

The recordings are of real models (assets/routes). The first half of each warms up, hits count in the second.
Every policy must take in what is asked for and cannot give up what the layer at work uses.
"""

from __future__ import annotations

import ctypes
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.bench.report import show
from engine.errors import NativeError
from engine.kernels import REINSTALL
from engine.native import llama

_FOLDER = Path(__file__).parents[2] / "assets" / "routes"
SHARES = {  # of a model's experts that are in memory, %
    "qwen3-30b-a3b": (12, 18, 24, 50),
    "gemma-4-26b-a4b": (10, 21, 35, 50),
    "gpt-oss-120b": (3.5, 5.2, 10, 18),
}
DECAYS = (0.98, 0.95, 0.9, 0.85)  # of per-layer LFU; the best counts
_NEVER = -1e9  # further away than any token

Values = npt.NDArray[np.float64]
Experts = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Trace:
    """`experts` I32 [tokens, layers, used]; negative where nothing was computed. Distinct within a layer."""

    name: str
    experts: Experts
    n_experts: int

    @property
    def half(self) -> int:
        return len(self.experts) // 2

    @property
    def asked(self) -> int:
        """Requests in the second half."""
        return int((self.experts[self.half :] >= 0).sum())

    def slots(self, percent: float) -> int:
        return round(percent / 100 * self.experts.shape[1] * self.n_experts)


class Worth(Protocol):
    """What experts are worth; the cheapest goes first. Only those asked for change."""

    values: Values  # [layers, experts]

    def ask(self, token: int, layer: int, experts: Experts) -> None: ...


class Recency:
    def __init__(self, trace: Trace) -> None:
        self.values = _nothing(trace)

    def ask(self, token: int, layer: int, experts: Experts) -> None:
        self.values[layer, experts] = _moment(self.values, token, layer)


class Frequency:
    """Uses, each worth less with every token that followed."""

    def __init__(self, trace: Trace, decay: float) -> None:
        self.values = _nothing(trace)
        self._decay = min(decay, 1 - 1e-9)  # of equals that used longer ago goes first

    def ask(self, token: int, layer: int, experts: Experts) -> None:
        self.values[layer, experts] += self._decay**-token


class Foresight:
    """Belady: what is used again last goes first."""

    def __init__(self, trace: Trace) -> None:
        self.values = _nothing(trace)
        self._then: dict[tuple[int, int], Values] = {}
        coming = np.full_like(self.values, _NEVER)
        for token, layer, experts in reversed(list(_requests(trace))):
            self._then[token, layer] = coming[layer, experts]
            coming[layer, experts] = -_moment(self.values, token, layer)

    def ask(self, token: int, layer: int, experts: Experts) -> None:
        self.values[layer, experts] = self._then[token, layer]


def run(args: Namespace) -> None:
    """Replays every recording with every policy and prints a table of hits in %."""
    table = []
    for name, shares in SHARES.items():
        trace = load(name)
        table += [_line(trace, percent) for percent in shares]
    foot = "hits in the second half, % of what was asked for, with slots for so many % of the experts; "
    foot += "gain: of ours over lru, 1 where it reaches layer_lfu with the decay that suits it best"
    show(table, as_json=args.json, foot=foot)


def load(name: str) -> Trace:
    with np.load(_FOLDER / f"{name}.npz") as file:
        return Trace(name, file["experts"].astype(np.int32), int(file["n_experts"]))


def _line(trace: Trace, percent: float) -> dict[str, object]:
    slots = trace.slots(percent)

    def share(hits: int) -> float:
        return 100 * hits / trace.asked

    lru = share(replay(trace, slots, Recency(trace)))
    by_decay = {
        decay: share(replay(trace, slots, Frequency(trace, decay), per_layer=True)) for decay in DECAYS
    }
    decay = max(by_decay, key=by_decay.__getitem__)
    ours = share(native_replay(trace, slots))
    return {
        "bench": "replay",
        "trace": trace.name,
        "percent": percent,
        "slots": slots,
        "lru": lru,
        "lfu": share(replay(trace, slots, Frequency(trace, 1.0))),
        "layer_lfu": by_decay[decay],
        "decay": decay,
        "ours": ours,
        "belady": share(replay(trace, slots, Foresight(trace))),
        "gain": (ours - lru) / (by_decay[decay] - lru) if by_decay[decay] > lru else None,
    }


def replay(trace: Trace, slots: int, worth: Worth, *, per_layer: bool = False) -> int:
    """Hits in the second half; `per_layer`: each layer has slots of its own."""
    layers = trace.experts.shape[1] if per_layer else 1
    shares = [slots // layers + (layer < slots % layers) for layer in range(layers)]
    standing = np.full_like(worth.values, np.inf)  # worth of what is resident and may go
    used, hits = [0] * layers, 0
    for token, layer, experts in _requests(trace):
        worth.ask(token, layer, experts)
        resident = standing[layer, experts] < np.inf
        hits += int(resident.sum()) if token >= trace.half else 0
        standing[layer, experts] = np.inf
        pool = layer if per_layer else 0
        among = standing[layer : layer + 1] if per_layer else standing
        for _ in range(int((~resident).sum())):
            if used[pool] < shares[pool]:
                used[pool] += 1
            else:
                among.flat[np.argmin(among)] = np.inf
        standing[layer, experts] = worth.values[layer, experts]
    return hits


def native_replay(
    trace: Trace, slots: int, params: tuple[float, float, float] = (0.0, 0.0, 0.0), library: Any = None
) -> int:
    """Hits of the store's own policy; `params` of native/s2/store/s2-policy.h, its default ones without.

    Raises NativeError where the library has no replay or refuses the arguments.
    """
    lib = library or llama()._lib
    try:
        function = lib.s2_policy_replay
    except AttributeError:
        raise NativeError("this build cannot replay", hint=REINSTALL) from None
    function.restype = ctypes.c_int64
    function.argtypes = [ctypes.c_void_p, *[ctypes.c_int32] * 6, *[ctypes.c_float] * 3]
    experts = np.ascontiguousarray(trace.experts, dtype=np.int32)
    hits = function(experts.ctypes.data, *experts.shape, trace.n_experts, slots, trace.half, *params)
    if hits < 0:
        raise NativeError(f"the replay of {trace.name} with {slots} slots was refused")
    return int(hits)


def _nothing(trace: Trace) -> Values:
    return np.zeros((trace.experts.shape[1], trace.n_experts))


def _moment(values: Values, token: int, layer: int) -> int:
    return token * len(values) + layer


def _requests(trace: Trace) -> Iterator[tuple[int, int, Experts]]:
    """(token, layer, experts asked for) in order."""
    tokens, layers, _ = trace.experts.shape
    for token in range(tokens):
        for layer in range(layers):
            experts = trace.experts[token, layer]
            yield token, layer, experts[experts >= 0]
