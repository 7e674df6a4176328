"""What a probe found: a value and where it was read, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Reading:
    """`value` is plain data, None where the thing is not there or `error` says why it is not known.

    A value with an error is the last one known, and the error says why there is no newer one.
    """

    value: Any = None
    source: str = ""
    error: str = ""

    @property
    def known(self) -> bool:
        return self.value is not None

    @property
    def stale(self) -> bool:
        return self.known and bool(self.error)


#: By name: "memory.total", "gpu.0.power_w".
Readings = Mapping[str, Reading]


def read(source: str, probe: Callable[[], Any]) -> Reading:
    """What `probe` returns; what goes wrong in it is an error of this reading alone."""
    try:
        return Reading(probe(), source)
    except FileNotFoundError:
        return Reading(None, source, "not there")
    except OSError as error:
        return Reading(None, source, error.strerror or str(error))
    except Exception as error:  # a file in a form nobody has seen yet
        return Reading(None, source, f"unexpected: {type(error).__name__}: {error}"[:200])


def text_of(root: Path, name: str) -> str:
    """The file's text without the NUL bytes that device trees end with. Raises OSError."""
    return (root / name).read_bytes().replace(b"\x00", b"\n").decode("utf-8", "replace").strip()


def line_of(root: Path, name: str, default: str = "") -> str:
    """The first line, `default` where there is none."""
    try:
        return text_of(root, name).split("\n")[0].strip()
    except OSError:
        return default


def number_in(root: Path, name: str) -> int | None:
    """The whole number a file holds; None where there is no such file or number."""
    try:
        return int(line_of(root, name))
    except ValueError:
        return None
