"""The models on this machine: each read and judged, with the reason where it cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.places import Place, candidates, usual_places
from app.verdict import UNREADABLE, Verdict, verdict
from engine.errors import ModelError
from engine.model import read_model_info
from engine.paths import EMBEDDED_MODEL
from engine.size import size

if TYPE_CHECKING:
    from app.places import Candidate
    from engine.device import Device
    from engine.model import ModelInfo
    from engine.plan import Wishes

OURS = "s2chat"


@dataclass(frozen=True, slots=True)
class Item:
    """A model of the list. `path`: its first file. `tool`: who keeps it. `info` is None for one that cannot
    be read."""

    path: Path
    tool: str
    name: str
    info: ModelInfo | None
    verdict: Verdict

    @property
    def usable(self) -> bool:
        return self.info is not None

    @property
    def about(self) -> str:
        """Family, experts, quantisation and size."""
        info = self.info
        if info is None:
            return ""
        experts = f"{info.n_expert_used} of {info.n_expert} experts" if info.is_moe else "dense"
        return " · ".join(part for part in (info.arch, experts, info.quant, size(info.size_bytes)) if part)


def all_places(downloads: Path, folders: tuple[Path, ...] = ()) -> tuple[Place, ...]:
    """Our own first: what ships and was downloaded, not what benches made; then a person's, then those of
    other tools."""
    own = (Place(EMBEDDED_MODEL, OURS), Place(downloads, OURS))
    return (*own, *(Place(folder, "your folders") for folder in folders), *usual_places())


def scan(places: tuple[Place, ...], device: Device, wishes: Wishes) -> Iterator[Item]:
    """The models in `places`, one after the other as they are read: a header takes a few hundredths of a
    second. Nothing a file says makes this raise."""
    shown: set[Path] = set()
    for candidate in candidates(places):
        item = look_at(candidate, device, wishes)
        if item.path not in shown:
            shown.add(item.path)
            yield item


def look_at(candidate: Candidate, device: Device, wishes: Wishes) -> Item:
    path = candidate.path
    try:
        info = read_model_info(path)
    except ModelError as error:
        why = error.line().removeprefix(f"{path}: ").replace(f"{path.parent}/", "")
        return Item(path, candidate.tool, candidate.title or path.name, None, Verdict(UNREADABLE, why, 0.0))
    name = candidate.title or info.name
    return Item(info.path, candidate.tool, name, info, verdict(device, info, wishes))
