"""What the native library is made from, and the key under which a finished build is kept."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from s2build.problem import SetupError

REPOSITORY = Path(__file__).resolve().parents[2]
NATIVE = REPOSITORY / "native"
TOOLS_LOCK = REPOSITORY / "packaging/native.lock"

UPSTREAM_VERSION = "0.3.36"
UPSTREAM_COMMIT = "0c1e57098"  # of llama.cpp, as vendored in that version
SDIST_NAME = f"llama_cpp_python-{UPSTREAM_VERSION}.tar.gz"
SDIST_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
SDIST_REQUIREMENT = f"llama-cpp-python=={UPSTREAM_VERSION} --hash=sha256:{SDIST_SHA256}"

BUILD_FILES = ("CMakeLists.txt", "LICENSE-libgomp")  # of native/, beside the source that is built
# Changes of these change what comes out; changes of the rest of this package do not.
_RECIPE_FILES = (
    "kernels.py",
    "patching.py",
    "recipe.py",
    "source.py",
    "tools.py",
    "wheel.py",
    "wheel_hook.py",
)


@dataclass(frozen=True)
class Inputs:
    """Everything a build depends on. Two builds with equal inputs are the same build."""

    version: str
    sdist_sha256: str
    preset: str
    compiler: str
    cpu: str
    recipe: dict[str, str]  # file name → sha256
    sources: dict[str, str]  # patches and sidecar files, likewise

    @property
    def key(self) -> str:
        return _digest(asdict(self))

    @property
    def tree_key(self) -> str:
        """Of the build tree: patches and sources may change in it, ninja sees that."""
        return _digest({**asdict(self), "sources": {}, "recipe": {}, "version": ""})


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:20]


def parse_version(pyproject: str) -> str:
    """Our version of llama-cpp-python as pyproject.toml asks for it."""
    match = re.search(r'"llama-cpp-python==([^"]+)"', pyproject)
    if not match or not match.group(1).startswith(f"{UPSTREAM_VERSION}+"):
        raise SetupError(f"pyproject.toml must ask for llama-cpp-python=={UPSTREAM_VERSION}+s2.N")
    return match.group(1)


def our_version() -> str:
    return parse_version((REPOSITORY / "pyproject.toml").read_text())


def patch_files() -> list[Path]:
    return sorted(NATIVE.glob("patches/*.patch"))


def sidecar_files() -> list[Path]:
    return sorted(path for path in NATIVE.glob("s2/**/*") if path.is_file())


def hook_symbols() -> set[str]:
    """Functions the built library must export, as the sidecar's headers declare them."""
    headers = "\n".join(path.read_text() for path in sidecar_files() if path.suffix == ".h")
    return set(re.findall(r"^\s*LLAMA_API\b[^;(]*?\b(\w+)\s*\(", headers, re.MULTILINE))


def make_inputs(*, preset: str, compiler: str, cpu: str, patched: bool) -> Inputs:
    here = Path(__file__).parent
    recipe = [*(here / name for name in _RECIPE_FILES), TOOLS_LOCK, *(NATIVE / name for name in BUILD_FILES)]
    sources = [*patch_files(), *sidecar_files()] if patched else []
    return Inputs(
        version=our_version() if patched else UPSTREAM_VERSION,
        sdist_sha256=SDIST_SHA256,
        preset=preset,
        compiler=compiler,
        cpu=cpu,
        recipe={path.name: file_sha256(path) for path in recipe},
        sources={str(path.relative_to(NATIVE)): file_sha256(path) for path in sources},
    )


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
