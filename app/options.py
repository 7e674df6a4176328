"""What the command line decided about a chat."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.settings import Settings
from engine.remote.address import Address


@dataclass(frozen=True, slots=True)
class Load:
    """The model to load and what the user wished for it; None leaves a number to the engine."""

    model: Path
    n_ctx: int | None = None
    n_threads: int | None = None
    cache_type: str | None = None
    budget: int | str | None = None


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """`request` holds fields that go into every request as they are, the settings screen changes them; ""
    leaves the mode to the engine.

    `server` None: an engine on this machine, with `load`. Else `model` is the one to ask for there, "" for
    its first. `keeper`: see `app.keeper`.
    """

    load: Load
    mode: str = ""
    request: dict[str, Any] = field(default_factory=dict)
    system: str = ""
    settings: Settings = field(default_factory=Settings)
    server: Address | None = None
    model: str = ""
    keeper: int | None = None
