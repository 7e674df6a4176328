"""Loads a model with llama.cpp as a plan says."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any

from engine.context import Context
from engine.errors import Cancelled, ModelError
from engine.model import ModelInfo
from engine.native import CancelFlag, log
from engine.placement import NONE
from engine.plan import Plan
from engine.store import Store
from engine.threads import ThreadGovernor

_LOAD_WITHOUT_MAPPING = 0  # enum llama_load_mode


def open_model(
    bindings: Any,
    info: ModelInfo,
    plan: Plan,
    on_progress: Callable[[float], None] | None,
    cancel: CancelFlag | None,
    store: Store | None = None,
) -> tuple[Any, Context]:
    """The llama model and its context."""
    log.clear()
    model = _load_model(bindings, info, plan, on_progress, cancel)
    threads = ThreadGovernor(plan.n_threads, fixed=plan.threads_fixed)
    try:
        return model, Context(model, info, plan, threads, store, n_outputs=plan.n_outputs)
    except BaseException:
        bindings.llama_model_free(model)
        raise


def _load_model(
    bindings: Any,
    info: ModelInfo,
    plan: Plan,
    on_progress: Callable[[float], None] | None,
    cancel: CancelFlag | None,
) -> Any:
    def progress(fraction: float, _: Any) -> bool:
        if on_progress is not None:
            on_progress(fraction)
        return cancel is None or not cancel.is_set

    params = bindings.llama_model_default_params()
    params.use_extra_bufts = plan.repack or plan.store
    if plan.store:  # pages of a mapped file are memory that no budget holds
        params.load_mode = _LOAD_WITHOUT_MAPPING
    nowhere = (ctypes.c_void_p * 1)()  # a list that ends at once
    if plan.gpu_layers == NONE:
        params.devices = ctypes.addressof(nowhere)
    params.progress_callback = bindings.llama_progress_callback(progress)
    model = bindings.llama_model_load_from_file(os.fsencode(info.path), params)
    if model is None:
        if cancel is not None and cancel.is_set:
            raise Cancelled("loading was stopped")
        raise ModelError(
            f"{info.path}: {log.last() or 'llama.cpp cannot load it'}", hint="see the engine's log"
        )
    return model
