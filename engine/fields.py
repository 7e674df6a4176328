"""Reads typed fields out of a JSON object; a wrong one is a `BadRequest` that names it. null is absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from engine.errors import BadRequest


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`."""
    try:
        value = json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {_short(error)}") from None
    if not isinstance(value, dict):
        raise BadRequest("the body is not a JSON object")
    return value


class Fields:
    """The fields of one JSON object; `where` is put before their names in errors."""

    def __init__(self, body: Mapping[str, Any], where: str = "") -> None:
        self._body = body
        self._where = where

    def get(self, name: str) -> Any:
        return self._body.get(name)

    def flag(self, name: str) -> bool:
        value = self._body.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.wrong(name, "true or false")

    def switch(self, name: str) -> bool | None:
        """As `flag`, where saying nothing is not the same as no."""
        return None if self._body.get(name) is None else self.flag(name)

    def integer(self, name: str) -> int | None:
        value = self._body.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self.wrong(name, "a whole number")

    def number(self, name: str) -> float | None:
        value = self._body.get(name)
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            return value
        raise self.wrong(name, "a number")

    def text(self, name: str) -> str | None:
        value = self._body.get(name)
        if value is None or isinstance(value, str):
            return None if value is None else self.clean(name, value)
        raise self.wrong(name, "a string")

    def object(self, name: str) -> Fields:
        value = self._body.get(name)
        if value is None or isinstance(value, dict):
            return Fields(value or {}, f"{self._where}{name}.")
        raise self.wrong(name, "an object")

    def clean(self, name: str, value: str) -> str:
        """JSON can spell half a surrogate pair, which is no text and would break the tokenizer."""
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.wrong(name, "valid Unicode") from None
        return value

    def wrong(self, name: str, wanted: str) -> BadRequest:
        return BadRequest(f"{self._where}{name} is not {wanted}")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _short(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
