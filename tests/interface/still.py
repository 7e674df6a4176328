"""A chat whose engine, history and models stand still, so that its screens are the same every time."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import chat

from app import history, picking
from app.chat import ChatApp
from app.history import History
from app.inventory import Item
from app.link import EngineLink
from app.settings import Settings
from app.verdict import CANNOT, DISK, FITS, SLOW, UNREADABLE, Verdict
from engine import messages
from engine.events import Timings
from engine.messages import ChatChunk, ModeCard, ModelCard, Snapshot
from engine.model import ModelInfo
from engine.paths import Paths
from engine.request import MODES

MODEL = Path("/models/SmolMoE-8x135M.gguf")
# As the README's table has them for `s2-exact`: the picture there is one of these screens.
TIMINGS = Timings(
    prompt_n=31, prompt_ms=120.0, predicted_n=94, predicted_ms=477.0, draft_n=79, draft_n_accepted=74,
    verify_n=20, context_n=311, gain=0.83,
)  # fmt: skip
SNAPSHOT = Snapshot(
    instance="1", state="ready", progress=1.0, error=None,
    model=ModelCard(str(MODEL), "SmolMoE 8x135M", "qwen3moe", 700 << 20, 4096, 8192, 8, 2, True),
    plan=None, settings=messages.Settings("ar", 2, 8),
    modes=tuple(ModeCard(m.name, m.exact, bool(m.drafters), m.summary) for m in MODES.values()),
    notices=(), running=0, queued=0, clients=1, timings=None, rss_bytes=900 << 20, budget_bytes=1 << 30,
)  # fmt: skip

QUESTION = "How does a lock lift a boat? With a picture, and the sum in Python."
ANSWER = """\
<think>
They want the principle, a drawing and a small calculation.
</think>

## A lock

A **lock** is a chamber between *two levels* of water. To lift a boat:

1. close the lower gate behind it,
2. open the [sluice](https://example.org) of the upper gate,
3. wait until both levels are `equal`.

> Nothing is pumped: the water runs down by itself.

```python
def volume(length: float, width: float, lift: float) -> float:
    return length * width * lift  # cubic metres
```

| lift | water |
|---|---|
| 2 m | 2,400 m³ |
| 5 m | 6,000 m³ |
"""
CHATS = (
    ("Rivers of Europe", "Name three rivers.", "Rhine, Elbe, Danube."),
    ("", "[bold]markup[/] stays text", "It does."),
    ("一隻船如何通過船閘", "一隻船如何通過船閘？", "水自己流下來。"),
    ("A title that is a good deal longer than the list is wide on a small terminal", "Why?", "Because."),
)
WHEN = 1_790_000_000  # Unix time


class StillClient:
    """Streams an answer up to the middle of its code, and then nothing more."""

    async def chat(self, *_: Any, **__: Any) -> AsyncGenerator[ChatChunk, None]:
        yield ChatChunk(mode="s2-exact")
        yield ChatChunk(text=ANSWER[: ANSWER.index(" * lift  #")], timings=TIMINGS)
        await asyncio.Event().wait()

    async def count(self, _: Any) -> int:
        return 311

    async def cancel(self, _: str) -> bool:
        return True


async def _stand_still(link: EngineLink) -> None:
    link._last = SNAPSHOT
    link._wanted.set()
    link._client.set_result(StillClient())  # type: ignore[arg-type]
    link._listener.engine_state(SNAPSHOT)
    await asyncio.Event().wait()


_PART = "of its experts stay in memory, the others are read as they are needed"
_MODELS = (
    ("SmolMoE-8x135M", "qwen3moe", 0.7, (8, 2), "Q8_0", FITS, "needs 0.9 GiB of 6.2 GiB that are free", 1.0),
    ("Qwen3-30B-A3B-Instruct", "qwen3moe", 17.3, (128, 8), "Q4_K_M",
     DISK, f"needs 18.1 GiB, runs within 5.1 GiB: 24% {_PART}", 0.24),
    ("gpt-oss-20b", "gpt-oss", 11.3, (32, 4), "MXFP4",
     DISK, f"needs 12.0 GiB, runs within 5.1 GiB: 36% {_PART}", 0.36),
    ("Llama-3.3-70B", "llama", 39.6, (0, 0), "Q4_K_M",
     SLOW, "needs 41.0 GiB, 6.2 GiB are free, and its experts cannot be read one by one: it would crawl",
     0.0),
    ("Mamba", "mamba", 1.2, (0, 0), "Q8_0", CANNOT, "a context of 4096 does not fit", 0.0),
)  # fmt: skip


def _items() -> Iterator[Item]:
    for name, arch, gib, experts, quant, word, words, share in _MODELS:
        path = Path(f"/models/{name}.gguf")
        info = ModelInfo(path, name, arch, int(gib * (1 << 30)), 24, *experts, 8192, 1 << 16, quant)
        yield Item(path, "s2chat", name, info, Verdict(word, words, share))
    unreadable = Verdict(UNREADABLE, "ends inside its header", 0.0)
    yield Item(Path("/models/broken.gguf"), "Ollama", "broken", None, unreadable)


def still(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> ChatApp:
    """The chat, with some others in its history."""
    monkeypatch.setattr(EngineLink, "run", _stand_still)
    monkeypatch.setattr(picking, "scan", lambda *_: _items())
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(history, "time", SimpleNamespace(time=lambda: WHEN + 9 * 86400))
    _write_history(paths)
    app = chat(paths, mode="s2-exact", model=MODEL)
    file = Path("/home/me/.config/s2chat/settings.toml")
    settings = Settings(file, {"mode": "s2-exact", "sampling.temperature": 0.7})
    app.options = replace(app.options, settings=settings)
    app.adjusting.settings = settings
    return app


def _write_history(paths: Paths) -> None:
    kept = History(paths.history)
    chats = [*((title, question, answer, {}) for title, question, answer in CHATS)]
    chats.append(("A lock", QUESTION, ANSWER, {**TIMINGS.as_json(), "end": ""}))
    for title, question, answer, values in chats:
        number = kept.create()
        _, message = kept.begin_turn(number, question, "s2-exact")
        kept.finish(message, answer, "done", values)
        kept.rename(number, title)
    kept.pin(2, True)
    kept.close()
    with contextlib.closing(sqlite3.connect(paths.history)) as database:
        database.execute("UPDATE conversations SET updated = ? + 86400 * id, owner = NULL", (WHEN,))
        database.commit()
