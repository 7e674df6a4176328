"""What this program is made of, part by part."""

from __future__ import annotations

import contextlib
from importlib import metadata

from engine import __version__
from engine.errors import S2Error
from engine.kernels import native_build
from engine.model import read_model_info
from engine.native import ABI_VERSION
from engine.paths import EMBEDDED_MODEL

_UNKNOWN = "?"


def versions() -> dict[str, str]:
    """Part and version, "?" for a part that is missing or does not say."""
    found = {
        "s2chat": __version__,
        "llama.cpp": _UNKNOWN,
        "llama-cpp-python": _UNKNOWN,
        "hooks": str(ABI_VERSION),
        "kernels": _UNKNOWN,
        "model": _UNKNOWN,
    }
    with contextlib.suppress(metadata.PackageNotFoundError):
        found["llama-cpp-python"] = metadata.version("llama-cpp-python")
    with contextlib.suppress(S2Error):
        build = native_build()
        found["llama.cpp"] = build.commit or _UNKNOWN
        found["kernels"] = build.chosen
    with contextlib.suppress(S2Error):
        found["model"] = read_model_info(EMBEDDED_MODEL).name
    return found
