"""Functions of a native library with their C types, from a table.

ctypes takes a function that it is told nothing about for one that returns an int, and cuts pointers in half.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Prototype = tuple[Any, list[Any]]  # what ctypes calls restype and argtypes


def declare(library: Any, prototypes: Mapping[str, Prototype]) -> dict[str, Any]:
    """The functions in `prototypes` by name, ready to be called, here or as attributes of `library`.

    Raises AttributeError when the library lacks one.
    """
    functions = {}
    for name, (result, arguments) in prototypes.items():
        function = functions[name] = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return functions
