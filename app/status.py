"""`s2chat status` and `s2chat stop`: a look at the running engine, and its end."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from typing import TYPE_CHECKING

from app import exits
from app.labels import (
    ModeLabel,
    acceptance,
    hits,
    late,
    per_pass,
    prefetch_used,
    read_per_token,
    speed,
    stall_per_token,
)
from app.streams import closing
from app.text import one_line
from engine.client import EngineClient
from engine.errors import EngineUnavailable, S2Error
from engine.launcher import find_engine
from engine.paths import Paths
from engine.size import size

if TYPE_CHECKING:
    from engine.launcher import Handle
    from engine.messages import Snapshot

_STOP_S = 10.0


def show_status(*, as_json: bool) -> int:
    """Exit code 4 when no engine runs, which scripts can ask for."""
    handle = find_engine(Paths.default())
    if handle is None:
        if as_json:
            print(json.dumps({"state": "off"}))
        else:
            print("no engine is running")
        return exits.ENGINE
    snapshot = asyncio.run(_snapshot(handle))
    if as_json:
        print(json.dumps({"pid": handle.hello.pid, "build": handle.hello.build, **_as_json(snapshot)}))
    else:
        print("\n".join(f"{name:<9}{value}" for name, value in _rows(handle, snapshot)))
    return exits.OK


def stop_engine() -> int:
    handle = find_engine(Paths.default())
    if handle is None:
        print("no engine is running", file=sys.stderr)
        return exits.OK
    asyncio.run(_shut_down(handle))
    deadline = time.monotonic() + _STOP_S
    while handle.death(wait_s=0) is None:
        if time.monotonic() > deadline:
            raise S2Error(
                f"the engine (process {handle.hello.pid}) does not leave", hint=f"kill {handle.hello.pid}"
            )
        time.sleep(0.05)
    return exits.OK


async def _snapshot(handle: Handle) -> Snapshot:
    async with EngineClient(handle.socket) as client, closing(client.telemetry()) as snapshots:
        async for snapshot in snapshots:
            return snapshot
    raise EngineUnavailable("the engine closed the connection")


async def _shut_down(handle: Handle) -> None:
    async with EngineClient(handle.socket) as client:
        await client.shutdown()


def _as_json(snapshot: Snapshot) -> dict[str, object]:
    fields = dataclasses.asdict(snapshot)
    fields["timings"] = snapshot.timings.as_json() if snapshot.timings else None
    fields["clients"] = _others(snapshot)
    return fields


def _others(snapshot: Snapshot) -> int:
    """Attached clients without this look at them."""
    return max(0, snapshot.clients - 1)


def _rows(handle: Handle, snapshot: Snapshot) -> list[tuple[str, str]]:
    rows = [("state", _state(snapshot)), ("process", f"{handle.hello.pid}, build {handle.hello.build}")]
    if model := snapshot.model:
        rows += [
            ("model", f"{one_line(model.name)} ({model.arch}, {size(model.size_bytes)})"),
            ("file", one_line(model.path)),
            ("experts", f"{model.n_expert_used} of {model.n_expert} per token" if model.is_moe else "none"),
            ("context", f"{model.n_ctx} tokens, trained for {model.n_ctx_train}"),
        ]
    if snapshot.plan and snapshot.plan.cache_type != "f16":
        rows.append(("KV cache", snapshot.plan.cache_type))
    if snapshot.plan and (how := snapshot.plan.reasons.get("reading")):
        rows.append(("reads", one_line(how, 300)))
    card = next((mode for mode in snapshot.modes if mode.name == snapshot.settings.mode), None)
    if card:
        rows.append(("mode", f"{ModeLabel(card.name, card.exact)}: {card.summary}"))
    if (timings := snapshot.timings) and timings.predicted_n:
        rows.append(("prefill", speed(timings.prompt_per_second)))
        rows.append(("decode", speed(timings.predicted_per_second)))
        rows.append(("drafts", f"{acceptance(timings)} accepted, {per_pass(timings)} tokens per pass"))
        if timings.store:
            rows.append(
                (
                    "store",
                    f"{hits(timings)} hits, {late(timings)} late, {prefetch_used(timings)} of prefetch used",
                )
            )
            rows.append(("disk", f"{read_per_token(timings)} read, {stall_per_token(timings)} waited"))
    rows += [
        ("memory", _memory(snapshot)),
        ("clients", f"{_others(snapshot)} attached, {snapshot.running} running, {snapshot.queued} waiting"),
    ]
    return rows + [("note", one_line(notice)) for notice in snapshot.notices]


def _memory(snapshot: Snapshot) -> str:
    budget = f" of a budget of {size(snapshot.budget_bytes)}" if snapshot.budget_bytes else ""
    return f"{size(snapshot.rss_bytes)}{budget}, {size(snapshot.peak_bytes)} at most so far"


def _state(snapshot: Snapshot) -> str:
    if snapshot.state == "loading":
        return f"loading the model, {100 * snapshot.progress:.0f}%"
    return f"error: {one_line(snapshot.error)}" if snapshot.error else snapshot.state
