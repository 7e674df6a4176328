"""The data stages: token ids, conversations the teacher writes, and its figures on text."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.head import summary
from training.progress import Progress, say
from training.shelf import TEXT, Shelf
from training.trunk import Trunk, places
from training.writers import Order, write_all
from training.writing import talk_of

_AT_ONCE = 2048  # tokens of text in a pass


@dataclass(frozen=True)
class Sizes:
    """How much data: conversations and text tokens (0 for all), conversations of a file, batch slots, and
    tokens of an answer."""

    talks: int = 4096
    text_tokens: int = 0
    shard: int = 1024
    slots: int = 160
    answer: int = 224
    characters: int = 1_300_000


class Data:
    """Files below one folder; what is there is not made again."""

    def __init__(self, folder: Path, seed: int, sizes: Sizes) -> None:
        self.folder, self._seed, self._sizes = folder, seed, sizes
        folder.mkdir(parents=True, exist_ok=True)

    def tokenise(self, teacher: Path, checkout: Path, folders: Sequence[Path]) -> dict[str, Any]:
        """Prompts and texts as ids, made by the checkout's own Python, which has the vocabulary."""
        path = self.folder / "ids.json"
        if not path.exists():
            say("ids           prompts and texts become token ids")
            python = checkout / ".venv" / "bin" / "python"
            command = [python, "-m", "training.tokenise", teacher, path, *folders]
            options = ["--seed", str(self._seed), "--characters", str(self._sizes.characters)]
            paths = [str(checkout / "packaging"), str(checkout), os.environ.get("PYTHONPATH", "")]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(reversed(paths))}
            subprocess.run([*map(str, command), *options], check=True, env=environment)
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def conversations(self, trunk: Trunk, ids: dict[str, Any], *, held_out: bool) -> Shelf:
        """Those the teacher wrote; a shard that a killed run left unfinished is written anew, with equal
        words."""
        found = [talk for talk in ids["talks"] if talk["held_out"] == held_out]
        if self._sizes.talks:
            found = found[: max(4, self._sizes.talks // (8 if held_out else 1))]
        talks = [talk_of(talk["turns"], talk["temperature"]) for talk in found]
        name = "held-out-conversations" if held_out else "conversations"
        shards = [talks[at : at + self._sizes.shard] for at in range(0, len(talks), self._sizes.shard)]
        paths = [self.folder / f"{name}-{number:03d}.npz" for number in range(len(shards))]
        missing = [
            Order(f"{name[:10]} {number}", paths[number], shard, self._seed * 1000 + number + 500 * held_out)
            for number, shard in enumerate(shards)
            if not paths[number].exists()
        ]
        write_all(trunk, missing, self._sizes.slots, self._sizes.answer)
        return Shelf.joined([Shelf.load(path) for path in paths])

    def texts(self, trunk: Trunk, ids: dict[str, Any], *, held_out: bool) -> Shelf:
        name = "held-out-texts" if held_out else "texts"
        path = self.folder / f"{name}.npz"
        if not path.exists():
            pieces = [text["ids"] for text in ids["texts"] if text["held_out"] == held_out]
            limit = self._sizes.text_tokens // (8 if held_out else 1)
            if limit:
                ends = np.cumsum([len(piece) for piece in pieces])
                pieces = pieces[: int(np.searchsorted(ends, limit)) + 1]
            _figures(trunk, pieces, name).save(path)
        return Shelf.load(path)


@torch.inference_mode()
def _figures(trunk: Trunk, pieces: Sequence[Sequence[int]], name: str) -> Shelf:
    """A pass of the teacher over texts."""
    progress = Progress(name, sum(map(len, pieces)))
    parts: list[tuple[torch.Tensor, ...]] = []
    batch: list[Sequence[int]] = []
    for number, piece in enumerate(pieces):
        batch.append(piece)
        if sum(map(len, batch)) < _AT_ONCE and number + 1 < len(pieces):
            continue
        lengths = [len(text) for text in batch]
        tokens = torch.tensor([token for text in batch for token in text], device=trunk.device)
        hidden, turns = trunk.embed(tokens), places(lengths, trunk.device)
        for layer in trunk.layers:
            hidden = trunk.feed(layer, trunk.attend(layer, hidden, lengths, turns))
        for rows in trunk.final(hidden).split(128):
            ids, logp, tail = summary(trunk.logits(rows))
            parts.append((ids.to(torch.uint16).cpu(), logp.half().cpu(), tail.half().cpu()))
        progress.add(len(tokens))
        batch = []
    progress.end()
    ids, logp, tail = (torch.cat(column).numpy() for column in zip(*parts, strict=True))
    tokens_all = np.array([token for piece in pieces for token in piece], dtype=np.uint16)
    lengths_all = np.array([len(piece) for piece in pieces], dtype=np.int32)
    return Shelf(tokens_all, np.full(len(tokens_all), TEXT, dtype=np.uint8), lengths_all, ids, logp, tail)
