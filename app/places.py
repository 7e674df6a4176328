"""Where model files lie on this machine: our own folders, a person's, and the caches of other tools."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model import split_of

_DEEPEST = 8  # folders below a place; nobody has models deeper, and a link may lead back up
_MOST_SEEN = 50_000  # entries of a place; a whole home given as a folder must come to an end
_MANIFEST_BYTES = 1 << 20
_OLLAMA_MODEL = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True)
class Place:
    """`root` is a folder, or one file. `tool`: who keeps models there."""

    root: Path
    tool: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that should be a model; of a split set the one that was met first. `title` where its own name
    says nothing."""

    path: Path
    tool: str
    title: str = ""


def usual_places() -> tuple[Place, ...]:
    """The caches of common tools, where their own variables say they are."""
    home = Path.home()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or cache / "huggingface") / "hub"
    return (
        Place(Path(hub), "Hugging Face"),
        Place(home / ".lmstudio" / "models", "LM Studio"),
        Place(cache / "lm-studio" / "models", "LM Studio"),
        Place(Path(os.environ.get("LLAMA_CACHE") or cache / "llama.cpp"), "llama.cpp"),
        *(Place(root, "Ollama") for root in _ollama(home)),
    )


def _ollama(home: Path) -> list[Path]:
    own = os.environ.get("OLLAMA_MODELS")
    return [Path(own)] if own else [home / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]


def candidates(places: tuple[Place, ...]) -> Iterator[Candidate]:
    """Every model file in `places`, each once however many links and places lead to it."""
    seen: set[tuple[int, int]] = set()
    for place in places:
        found = _in_ollama(place) if place.tool == "Ollama" else _in_folder(place)
        for candidate in found:
            try:
                stat = candidate.path.stat()
            except OSError:
                key = (0, hash(candidate.path))  # a link to nothing is worth a line that says so
            else:
                key = (stat.st_dev, stat.st_ino)
            if key not in seen:
                seen.add(key)
                yield candidate


def _in_folder(place: Place) -> Iterator[Candidate]:
    try:
        is_file = place.root.is_file()
    except OSError:  # a folder above it may not be looked into
        return
    if is_file:
        yield Candidate(place.root, place.tool)
        return
    sets: set[tuple[Path, str]] = set()
    for path in _files(place.root):
        if path.suffix.lower() != ".gguf" or path.name.startswith("mmproj"):
            continue  # the eyes of a model with eyes are none by themselves
        split = split_of(path)
        if split is not None:
            stem, _, count = split
            if (path.parent, f"{stem}/{count}") in sets:
                continue
            sets.add((path.parent, f"{stem}/{count}"))
        yield Candidate(path, place.tool)


def _files(root: Path) -> Iterator[Path]:
    """Files below `root` in the order of their names; folders that cannot be read have none."""
    folders: list[tuple[Path, int]] = [(root, 0)]
    known: set[tuple[int, int]] = set()
    left = _MOST_SEEN
    while folders and left > 0:
        folder, depth = folders.pop()
        try:
            stat = folder.stat()
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        if (stat.st_dev, stat.st_ino) in known:
            continue
        known.add((stat.st_dev, stat.st_ino))
        left -= len(entries)
        below = []
        for entry in entries:
            if _is_folder(entry):
                if depth < _DEEPEST and not entry.name.startswith("."):
                    below.append((Path(entry.path), depth + 1))
            else:
                yield Path(entry.path)
        folders += reversed(below)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _in_ollama(place: Place) -> Iterator[Candidate]:
    """Ollama keeps models under the names of their checksums; its manifests know what they are called."""
    for path in _files(place.root / "manifests"):
        for digest in _digests(path):
            blob = place.root / "blobs" / digest.replace(":", "-")
            if _is_gguf(blob):
                yield Candidate(blob, place.tool, f"{path.parent.name}:{path.name}")


def _digests(manifest: Path) -> list[str]:
    try:
        with open(manifest, "rb") as file:
            read: Any = json.loads(file.read(_MANIFEST_BYTES))
        layers = read["layers"]
        found = [str(layer["digest"]) for layer in layers if layer.get("mediaType") == _OLLAMA_MODEL]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []
    return [digest for digest in found if digest.replace(":", "").isalnum()]


def _is_gguf(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False
