"""Sampling that a model's header advises stands in for our defaults, and yields to what a request says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from processes import until
from toys import write_llama

from engine.client import EngineClient
from engine.launcher import Handle
from engine.probe import call


def ask(engine: Handle, **fields: Any) -> str:
    body = {"prompt": "once upon", "max_tokens": 24, "ignore_eos": True, **fields}
    return str(call(engine.socket, "POST", "/v1/completions", body, timeout_s=60)["choices"][0]["text"])


async def advised(engine: Handle) -> Mapping[str, float]:
    async with EngineClient(engine.socket) as client:
        model = (await anext(client.telemetry())).model
    assert model is not None
    return model.sampling


def test_the_header_counts_where_the_request_is_silent(engine: Handle, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "toy.gguf", temperature=0.0)
    call(engine.socket, "POST", "/load", {"model": str(model), "n_ctx": 256, "n_threads": 1})
    until(lambda: call(engine.socket, "GET", "/health")["status"] == "ok")
    greedy = ask(engine, temperature=0)
    assert {ask(engine) for _ in range(3)} == {greedy}, "it advises 0"
    assert len({ask(engine, temperature=5, top_k=0, min_p=0) for _ in range(3)}) == 3
    assert asyncio.run(advised(engine)) == {"temperature": 0.0}, "the chat shows it"
