"""The native library: that it is ours, its hooks, its log, and a flag that stops it."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import NativeError
from engine.kernels import REINSTALL, load_library, native_build
from engine.prototypes import Prototype, declare
from engine.threads import BARRIER_SPINS

ABI_VERSION = 8  # s2_abi_version() of native/s2/s2.h


class _RoutingView(ctypes.Structure):
    """struct s2_routing_view of native/s2/s2.h."""

    _fields_ = [
        ("il", ctypes.c_int32),
        ("n_expert", ctypes.c_int32),
        ("n_used", ctypes.c_int32),
        ("n_rows", ctypes.c_int32),
        ("logits", ctypes.POINTER(ctypes.c_float)),
        ("ranks", ctypes.POINTER(ctypes.c_int32)),
    ]


_CONTEXT = ctypes.c_void_p
_HOOKS: dict[str, Prototype] = {
    "s2_set_n_expert_used": (None, [_CONTEXT, ctypes.c_int32]),
    "s2_set_scale_restored": (None, [_CONTEXT, ctypes.c_float]),
    "s2_set_rows_exact": (None, [_CONTEXT, ctypes.c_int32]),
    "s2_set_from_memory": (None, [_CONTEXT, ctypes.c_void_p]),
    "s2_set_gating": (
        None,
        [_CONTEXT, ctypes.c_int32, ctypes.c_float, ctypes.c_void_p, ctypes.c_int32],
    ),
    "s2_routing_best": (
        ctypes.c_int64,
        [_CONTEXT, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64],
    ),
    "s2_token_probability": (ctypes.c_float, [_CONTEXT, ctypes.c_int32, ctypes.c_int32]),
    "s2_sampler_init_race": (ctypes.c_void_p, [ctypes.c_uint32]),
    "s2_set_routing": (None, [_CONTEXT, ctypes.c_bool]),
    "s2_compute_bytes": (ctypes.c_int64, [_CONTEXT]),
    "s2_routing_n_layers": (ctypes.c_int32, [_CONTEXT]),
    "s2_routing_layer_get": (ctypes.c_bool, [_CONTEXT, ctypes.c_int32, ctypes.POINTER(_RoutingView)]),
}


@dataclass(frozen=True, slots=True)
class LayerRouting:
    """Routing of one MoE layer in the last decode call.

    `logits` F32 [n_rows, n_expert], router bias included. `ranks` I32 [n_rows, n_expert], every expert,
    best first; the first `n_used` of a row were selected.
    """

    layer: int
    n_used: int
    logits: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]


class CancelFlag:
    """Stops a decode call from another thread: native code reads it before every graph node."""

    def __init__(self) -> None:
        self._value = ctypes.c_int32(0)

    def set(self) -> None:
        self._value.value = 1

    def clear(self) -> None:
        self._value.value = 0

    @property
    def is_set(self) -> bool:
        return self._value.value != 0

    @property
    def address(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(ctypes.addressof(self._value))


class _Log:
    """Keeps the last lines llama.cpp complained with, and passes complaints on to stderr."""

    _WARN, _ERROR = 3, 4  # enum ggml_log_level: INFO 2, CONT 5

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=20)
        self._stop: CancelFlag | None = None
        self._lock = threading.Lock()

    def write(self, level: int, text: bytes) -> None:
        if level not in (self._WARN, self._ERROR) or (self._stop is not None and self._stop.is_set):
            return
        line = text.decode("utf-8", "replace").rstrip()
        with self._lock:
            self._lines.append((level, line))
        print(line, file=sys.stderr, flush=True)

    def clear(self) -> None:
        self._stop = None
        with self._lock:
            self._lines.clear()

    def hush_on(self, flag: CancelFlag) -> None:
        """A pass that `flag` stops complains of it, in lines that pass for the cause of a later crash."""
        self._stop = flag

    def last(self) -> str:
        """Why the latest call failed, in one line, without the name of the function that says so.

        The first error is the cause, those behind it say what became of it; without one, the last warning.
        """
        with self._lock:
            lines = list(self._lines)
        errors = [line for level, line in lines if level == self._ERROR]
        line = errors[0] if errors else lines[-1][1] if lines else ""
        return " ".join(line.split(": ", 1)[-1].split())


log = _Log()
_keep: list[Any] = []  # callbacks that native code holds on to
_loaded: Any = None


def llama() -> Any:
    """The bindings of llama-cpp-python, loaded on first use and checked to carry our hooks."""
    global _loaded
    if _loaded is None:
        _loaded = _load()
    return _loaded


def _load() -> Any:
    os.environ.setdefault("GOMP_SPINCOUNT", str(BARRIER_SPINS))  # libgomp reads it once, when it is loaded
    _keep.append(load_library(native_build().backend))
    try:
        import llama_cpp.llama_cpp as bindings
    except (ImportError, RuntimeError, FileNotFoundError) as error:
        raise NativeError(f"llama.cpp cannot be loaded: {error}", hint=REINSTALL) from error
    lib = bindings._lib
    try:
        version = lib.s2_abi_version()
    except AttributeError:
        raise NativeError(f"{lib._name} is llama.cpp without our hooks", hint=REINSTALL) from None
    if version != ABI_VERSION:
        raise NativeError(
            f"{lib._name} has hooks of version {version}, this is for {ABI_VERSION}",
            hint=REINSTALL,
        )
    declare(lib, _HOOKS)
    callback = bindings.llama_log_callback(lambda level, text, _: log.write(level, text))
    _keep.append(callback)
    bindings.llama_log_set(callback, None)
    bindings.llama_backend_init()
    return bindings


def race_sampler(seed: int) -> Any:
    """The last of a sampler chain, which draws so that near-equal distributions draw equal tokens
    (native/s2/s2-race.cpp). The chain it is added to owns it."""
    bindings = llama()
    return ctypes.cast(bindings._lib.s2_sampler_init_race(seed), ctypes.POINTER(bindings.llama_sampler))


class Hooks:
    """The hooks of one llama context."""

    def __init__(self, context: int) -> None:
        self._lib = llama()._lib
        self._context = ctypes.c_void_p(context)

    def set_experts(self, count: int) -> None:
        """Experts per token for the decode calls that follow; 0 is the model's own k."""
        self._lib.s2_set_n_expert_used(self._context, count)

    def set_scale_restored(self, share: float) -> None:
        """How far the weights of fewer experts are scaled to the sum of the model's own k: 0 (as it is) to 1.

        Only in families that leave the weights of the chosen as they are, and never with all k.
        """
        self._lib.s2_set_scale_restored(self._context, share)

    def set_rows_exact(self, rows: int) -> None:
        """Passes of up to `rows` rows give each row the same bits whatever stands beside it."""
        self._lib.s2_set_rows_exact(self._context, rows)

    def set_from_memory(self, store: ctypes.c_void_p | None) -> None:
        """Passes choose among the experts that `store` has in memory, and announce to it what the model
        itself would choose; None ends that."""
        self._lib.s2_set_from_memory(self._context, store)

    def set_gating(self, cap: int, beta: float, confidences: Sequence[float]) -> None:
        """Passes of as many rows as there are `confidences` lean towards `cap` experts their rows share, all
        but the first row, by `beta` times a row's margin; see engine/reuse.py. A cap of 0 ends that."""
        values = np.asarray(confidences, np.float32)
        self._lib.s2_set_gating(self._context, cap, beta, values.ctypes.data, len(values))

    def best_experts(self, n_layers: int, count: int, n_rows: int = 1) -> npt.NDArray[np.int32] | None:
        """The `count` best experts for each row of the last pass, I32 [n_layers, n_rows * count], best of a
        row first; None when the pass kept no such routing."""
        best = np.empty((n_layers, n_rows * count), np.int32)
        found = self._lib.s2_routing_best(self._context, n_rows, count, best.ctypes.data, best.size)
        return best if found == best.size else None

    def token_probability(self, row: int, token: int) -> float:
        """Of `token` after output row `row` of the last pass, at temperature 1."""
        return float(self._lib.s2_token_probability(self._context, row, token))

    def set_routing(self, enabled: bool) -> None:
        """Whether decode calls keep their routing for `routing()`."""
        self._lib.s2_set_routing(self._context, enabled)

    def routing_layers(self) -> int:
        """MoE layers whose routing the last decode call kept."""
        return int(self._lib.s2_routing_n_layers(self._context))

    def routing(self) -> list[LayerRouting]:
        """Routing of the last decode call, MoE layers in order; copies, good for as long as you like."""
        view = _RoutingView()
        layers = []
        for i in range(self.routing_layers()):
            if not self._lib.s2_routing_layer_get(self._context, i, ctypes.byref(view)):
                raise NativeError(f"routing of MoE layer {i} vanished")
            shape = (view.n_rows, view.n_expert)
            layers.append(
                LayerRouting(
                    layer=view.il,
                    n_used=view.n_used,
                    logits=np.ctypeslib.as_array(view.logits, shape).copy(),
                    ranks=np.ctypeslib.as_array(view.ranks, shape).copy(),
                )
            )
        return layers

    def compute_bytes(self) -> int:
        """Bytes of the buffers in which passes compute, touched or not."""
        return int(self._lib.s2_compute_bytes(self._context))

    def stop_on(self, flag: CancelFlag) -> None:
        """Decode calls end early once `flag` is set."""
        self._flag = flag  # native code holds its address
        log.hush_on(flag)
        bindings = llama()
        callback = ctypes.cast(self._lib.s2_abort_if_set, bindings.ggml_abort_callback)
        bindings.llama_set_abort_callback(self._context, callback, flag.address)
