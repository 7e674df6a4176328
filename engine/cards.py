"""Words the engine's state for its clients; `engine.messages` reads them back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine import __version__
from engine.memory import rss_bytes
from engine.messages import API_VERSION
from engine.model import stem_of
from engine.request import MODES, SPECULATION_FIELDS

if TYPE_CHECKING:
    from engine.job import Loaded
    from engine.plan import Plan
    from engine.state import EngineState

_CAPABILITIES = ["chat", "completions", "cancel", "settings", "telemetry", "load", "budget", "count", "watch"]


def handshake(state: EngineState) -> dict[str, Any]:
    return {
        "api": list(API_VERSION),
        "build": __version__,
        "instance": state.instance,
        "pid": state.pid,
        "capabilities": _CAPABILITIES,
        "model": state.state,
    }


def snapshot(state: EngineState) -> dict[str, Any]:
    loaded = state.loaded
    running = sum(job.started for job in state.jobs.values())
    return {
        "instance": state.instance,
        "state": state.state,
        "progress": round(state.progress, 4),
        "error": state.error,
        "model": None if loaded is None else _model_card(loaded),
        "plan": None if loaded is None else _plan_card(loaded.plan),
        "settings": settings(state),
        "modes": _mode_cards(state),
        "notices": [] if loaded is None else [*loaded.notices, *state.memory_notices],
        "running": running,
        "queued": len(state.jobs) - running,
        "clients": len(state.streams),
        "timings": None if state.timings is None else state.timings.as_json(),
        "rss_bytes": rss_bytes(),
        "peak_bytes": peak_bytes(),
        "budget_bytes": state.budget_bytes,
        "slot_bytes": _slot_bytes(state),
        "kept_bytes": state.worker.kept_bytes,
    }


def settings(state: EngineState) -> dict[str, Any]:
    """What `/settings` takes; how drafts are expanded is for benches."""
    speculation = state.speculation
    return {name: getattr(speculation, name) for name in SPECULATION_FIELDS}


def budget(state: EngineState, notice: str = "") -> dict[str, Any]:
    return {"budget_bytes": state.budget_bytes, "slot_bytes": _slot_bytes(state), "notice": notice}


def _slot_bytes(state: EngineState) -> int:
    governor = None if state.loaded is None else state.loaded.governor
    return 0 if governor is None else governor.slot_bytes


def model_name(state: EngineState) -> str:
    if state.loaded is not None:
        return state.loaded.info.name
    return stem_of(state.loading.load.path) if state.loading is not None else ""


def model_list(state: EngineState) -> list[dict[str, Any]]:
    """OpenAI's list with the one loaded model, and llama.cpp's `meta`."""
    if state.loaded is None:
        return []
    info = state.loaded.info
    meta = {"n_ctx": state.loaded.n_ctx, "n_ctx_train": info.n_ctx_train, "size": info.size_bytes}
    return [{"id": info.name, "object": "model", "created": 0, "owned_by": "local", "meta": meta}]


def peak_bytes() -> int:
    """The most memory this process has held so far; 0 where unknown."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), 0)
    except (OSError, ValueError, IndexError):
        return 0


def _mode_cards(state: EngineState) -> list[dict[str, Any]]:
    """The modes, and which of them write plain decode's text on this backend."""
    exact = state.loaded is None or state.loaded.exact
    return [
        {
            "name": mode.name,
            "exact": mode.keeps_text(exact_kernels=exact),
            "drafts": bool(mode.drafters),
            "summary": mode.summary,
            "compared": mode.compared,
        }
        for mode in MODES.values()
    ]


def _model_card(loaded: Loaded) -> dict[str, Any]:
    info = loaded.info
    return {
        "path": str(info.path),
        "name": info.name,
        "arch": info.arch,
        "size_bytes": info.size_bytes,
        "n_ctx": loaded.n_ctx,
        "n_ctx_train": info.n_ctx_train,
        "n_expert": info.n_expert,
        "n_expert_used": info.n_expert_used,
        "is_moe": info.is_moe,
        "can_switch_thoughts": loaded.can_switch_thoughts,
        "can_set_effort": loaded.can_set_effort,
        "sampling": dict(info.sampling),
    }


def _plan_card(plan: Plan) -> dict[str, Any]:
    return {
        "n_ctx": plan.n_ctx,
        "n_threads": plan.n_threads,
        "n_ubatch": plan.n_ubatch,
        "cache_type": plan.cache_type,
        "budget_bytes": plan.budget_bytes,
        "store": plan.store,
        "resident_bytes": plan.resident_bytes,
        "expert_bytes": plan.expert_bytes,
        "reasons": dict(plan.reasons),
    }
