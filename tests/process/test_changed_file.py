"""A model's file that is changed under the engine: one request fails, the next finds what is there now."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from processes import LOAD, until
from toys import copy_embedded, file_of_experts

from engine.errors import BadRequest, EngineUnavailable, ModelError
from engine.launcher import Handle
from engine.probe import call

BODY = {"messages": [{"role": "user", "content": "Tell me about the sea."}], "max_tokens": 24}


def ask(engine: Handle) -> str:
    body = BODY | {"temperature": 0, "ignore_eos": True}
    reply = call(engine.socket, "POST", "/v1/chat/completions", body, timeout_s=120)
    return str(reply["choices"][0]["message"]["content"])


def health(engine: Handle) -> dict[str, Any]:
    """Once nothing is being loaded."""
    until(lambda: call(engine.socket, "GET", "/health")["status"] != "loading", 60)
    return call(engine.socket, "GET", "/health")


def load(engine: Handle, model: Path) -> None:
    """With so few experts in memory that every answer has to read some."""
    call(engine.socket, "POST", "/load", LOAD | {"model": str(model), "n_ctx": 512, "budget": "500M"})
    assert health(engine) == {"status": "ok", "error": None}
    with pytest.raises(BadRequest, match="too small") as refused:
        call(engine.socket, "POST", "/budget", {"budget": "60M"})
    call(engine.socket, "POST", "/budget", {"budget": refused.value.hint.split("M ")[0] + "M"})


def test_a_file_that_was_touched_is_loaded_again(engine: Handle, tmp_path: Path) -> None:
    model = copy_embedded(tmp_path)
    load(engine, model)
    text = ask(engine)
    budget = call(engine.socket, "GET", "/budget")["budget_bytes"]
    touched = file_of_experts(model)
    for _ in range(3):  # the process has grown since: the least budget is enough all the same
        os.utime(touched)
        with pytest.raises(ModelError, match=f"{touched.name}: was changed while it was in use"):
            ask(engine)
        assert ask(engine) == text, "asked at once: it waits for the model"
    assert call(engine.socket, "GET", "/budget")["budget_bytes"] == budget < 500 << 20
    asked = LOAD | {"model": str(model), "n_ctx": 512, "budget": "500M"}
    assert call(engine.socket, "POST", "/load", asked)["state"] == "ready", "it is the same model still"


def test_a_file_that_was_cut_is_refused_by_name(engine: Handle, tmp_path: Path) -> None:
    model = copy_embedded(tmp_path)
    load(engine, model)
    ask(engine)
    short = file_of_experts(model)
    os.truncate(short, short.stat().st_size - (1 << 20))
    with pytest.raises(ModelError, match=short.name):
        ask(engine)
    found = health(engine)
    assert found["status"] == "error"
    assert f"{short.name}: 1,048,576 bytes are missing" in found["error"]
    with pytest.raises(EngineUnavailable, match="bytes are missing"):
        ask(engine)
    copy_embedded(tmp_path)
    load(engine, model)
    assert ask(engine)


def test_a_file_that_took_its_place_is_loaded_when_it_is_asked_for(engine: Handle, tmp_path: Path) -> None:
    model = copy_embedded(tmp_path)
    wish = LOAD | {"model": str(model), "n_ctx": 512}
    call(engine.socket, "POST", "/load", wish)
    assert health(engine) == {"status": "ok", "error": None}
    assert call(engine.socket, "POST", "/load", wish) == {"state": "ready"}
    last = file_of_experts(model)
    (tmp_path / "new").mkdir()
    file_of_experts(copy_embedded(tmp_path / "new")).replace(last)
    assert call(engine.socket, "POST", "/load", wish) == {"state": "loading"}
    assert health(engine) == {"status": "ok", "error": None}
    assert call(engine.socket, "POST", "/load", wish) == {"state": "ready"}
