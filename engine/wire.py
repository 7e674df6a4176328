"""Reads the requests of the engine's HTTP interface that ask for no answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from engine.budget import Budget, parse_budget
from engine.call import parse_speculation
from engine.errors import BadRequest, ModelError
from engine.fields import Fields
from engine.model import files_of
from engine.request import CACHE_TYPES, SPECULATION_FIELDS

_MOST_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class Load:
    """A model to load. `wishes` are the numbers the client insists on.

    `stamp` tells its files from others that take their place later, under the same names.
    """

    path: Path
    wishes: Mapping[str, Any]
    stamp: tuple[int, ...] = ()

    def stamped(self) -> Load:
        """With the first of its files, whichever was named, and the stamp of those that are there now. Waits
        for the disk."""
        try:
            files = files_of(self.path)
            looks = [file.stat() for file in files]
        except (ModelError, OSError):  # loading it says what is wrong
            return self
        stamps = [(about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns) for about in looks]
        return dataclasses.replace(self, path=files[0], stamp=tuple(chain.from_iterable(stamps)))


def parse_tokenize(body: Mapping[str, Any]) -> tuple[str, bool, bool]:
    """The text, whether BOS and the like belong in front, and whether <|names|> in it mean special tokens."""
    fields = Fields(body)
    content = fields.text("content")
    if content is None:
        raise fields.wrong("content", "a string")
    if fields.flag("with_pieces"):
        raise BadRequest("with_pieces is not supported by this engine", hint="leave it out")
    special = True if body.get("parse_special") is None else fields.flag("parse_special")
    return content, fields.flag("add_special"), special


def parse_detokenize(body: Mapping[str, Any]) -> list[int]:
    tokens = body.get("tokens")
    if (
        not isinstance(tokens, list)
        or len(tokens) > _MOST_TOKENS
        or not all(_is_id(token) for token in tokens)
    ):
        raise BadRequest("tokens is not a list of token ids", hint=f"up to {_MOST_TOKENS}")
    return tokens


def _is_id(token: Any) -> bool:
    return isinstance(token, int) and not isinstance(token, bool) and 0 <= token < 1 << 31


def parse_load(body: Mapping[str, Any]) -> Load:
    fields = Fields(body)
    model = fields.text("model")
    if not model or not Path(model).is_absolute():
        raise BadRequest("model is not the absolute path of a file")
    wishes: dict[str, Any] = {"n_ctx": fields.integer("n_ctx"), "n_threads": fields.integer("n_threads")}
    for name, value in wishes.items():
        if value is not None and value < 1:
            raise fields.wrong(name, "a positive number")
    wishes["cache_type"] = fields.text("cache_type")
    if wishes["cache_type"] not in (None, *CACHE_TYPES):
        raise fields.wrong("cache_type", "one of " + ", ".join(CACHE_TYPES))
    if body.get("budget") is not None:
        wishes["budget"] = parse_budget(body["budget"]).wire
    wishes |= parse_speculation(body)
    return Load(Path(model), {name: value for name, value in wishes.items() if value is not None})


def parse_budget_change(body: Mapping[str, Any]) -> Budget:
    unknown = sorted(set(body) - {"budget"})
    if unknown:
        raise BadRequest(f"unknown field {unknown[0]!r}", hint="budget is the only one")
    return parse_budget(body.get("budget"))


def parse_watch(body: Mapping[str, Any]) -> tuple[str, bool]:
    """The request, and whether it is to show its blocks."""
    fields = Fields(body)
    name = fields.text("request_id")
    if not name:
        raise BadRequest("request_id is missing")
    if body.get("blocks") is None:
        raise fields.wrong("blocks", "true or false")
    return name, fields.flag("blocks")


def parse_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(body) - set(SPECULATION_FIELDS))
    if unknown:
        raise BadRequest(f"unknown setting {unknown[0]!r}", hint="one of " + ", ".join(SPECULATION_FIELDS))
    return parse_speculation(body)
