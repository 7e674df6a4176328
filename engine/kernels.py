"""The native library as it lies on disk, and which of its matrix kernels this machine can run.

A library built on this machine has one CPU backend, for its processor. One that was built for all has several
(packaging/s2build/kernels.py), each in a folder of its own under one name. The first to be loaded is taken by
whatever asks for that name later, so one is chosen and loaded before libllama.
"""

from __future__ import annotations

import ctypes
import json
import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from engine.errors import NativeError
from engine.machine.cpu import all_features

#: Names the kernels to use, such as avx2, or oldest; for tests and for comparison.
KERNELS_ENV = "S2CHAT_KERNELS"
OLDEST = "oldest"
BUILT_HERE = "built here"
_BACKEND = "libggml-cpu.so"
_CHECKOUT = Path(__file__).resolve().parent.parent / "packaging/chat"
#: What to do about a native library that will not do.
REINSTALL = "run packaging/chat to build it" if _CHECKOUT.exists() else "install s2chat again"


@dataclass(frozen=True, slots=True)
class NativeBuild:
    """The libraries in `folder`. `commit` of llama.cpp, "" where the build does not say.

    `kernels`: those to choose from, best first, each with the processor features it asks for; empty where
    there is nothing to choose.
    """

    folder: Path
    commit: str
    kernels: dict[str, frozenset[str]]

    def choose(self, features: set[str]) -> str:
        """The kernels for a processor with these features, `OLDEST` where none of the others fit."""
        fitting = [name for name, wanted in self.kernels.items() if wanted <= features]
        forced = os.environ.get(KERNELS_ENV)
        if forced is None:
            return fitting[0] if fitting else OLDEST
        if forced not in (*fitting, OLDEST):
            raise NativeError(
                f"{KERNELS_ENV}={forced}: no such kernels run here",
                hint=f"these do: {', '.join((*fitting, OLDEST))}",
            )
        return forced

    @property
    def chosen(self) -> str:
        """The kernels for this machine, `BUILT_HERE` where there is no choice."""
        return self.choose(all_features(Path("/"))) if self.kernels else BUILT_HERE

    @property
    def backend(self) -> Path:
        """The CPU backend for this machine."""
        name = self.chosen
        return self.folder / ("" if name in (BUILT_HERE, OLDEST) else f"kernels/{name}") / _BACKEND


def native_build() -> NativeBuild:
    """What is installed here, or lies where LLAMA_CPP_LIB_PATH says. Loads nothing. Raises NativeError."""
    folder = library_folder()
    try:
        facts = json.loads((folder / "s2-build.json").read_text())
    except FileNotFoundError:  # stock llama.cpp
        return NativeBuild(folder, "", {})
    except (OSError, ValueError) as error:
        raise NativeError(f"{folder} cannot be used: {error}", hint=REINSTALL) from error
    kernels = {name: frozenset(features) for name, features in facts["kernels"].items()}
    return NativeBuild(folder, facts["llama.cpp"], kernels)


def library_folder() -> Path:
    """Where llama-cpp-python would load its libraries from; it is not imported for that."""
    override = os.environ.get("LLAMA_CPP_LIB_PATH")
    if override:
        return Path(override)
    spec = find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise NativeError("llama-cpp-python is not installed", hint=REINSTALL)
    return Path(spec.origin).parent / "lib"


def load_library(path: Path) -> ctypes.CDLL:
    """Whatever asks for a library by this name afterwards gets this one. Raises NativeError."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(f"llama.cpp cannot be loaded: {error}", hint=REINSTALL) from error
