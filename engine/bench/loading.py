"""Models as a bench opens them: planned for this machine, with what the bench wishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.device import detect
from engine.model import read_model_info
from engine.plan import Wishes, make_plan
from engine.session import Session


def load_here(path: Path, **wishes: Any) -> Session:
    """The model at `path`, loaded as the engine would with these fields of Wishes."""
    return Session.load(path, make_plan(detect(), read_model_info(path), Wishes(**wishes)))
