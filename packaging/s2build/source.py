"""The source tree of the native build: the pinned package, our patches, our sidecar files."""

from __future__ import annotations

import filecmp
import json
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from s2build.patching import apply_patch
from s2build.pip import pip, pip_problem
from s2build.problem import SetupError
from s2build.recipe import (
    BUILD_FILES,
    NATIVE,
    SDIST_NAME,
    SDIST_REQUIREMENT,
    SDIST_SHA256,
    UPSTREAM_COMMIT,
    UPSTREAM_VERSION,
    file_sha256,
    patch_files,
    sidecar_files,
)

# Of the package's 200 MB this is what the build reads.
_KEPT_DIRS = (
    "llama_cpp",
    *(f"vendor/llama.cpp/{name}" for name in ("cmake", "ggml", "include", "licenses", "src", "vendor")),
)
_KEPT_FILES = (
    *(
        "LICENSE.md",
        "README.md",
        "pyproject.toml",
        "vendor/llama.cpp/CMakeLists.txt",
        "vendor/llama.cpp/LICENSE",
    ),
)
_LLAMA_CPP = Path("vendor/llama.cpp")


def fetch_sdist(folder: Path, tools: Path) -> Path:
    """The pinned source package in `folder`, downloaded if missing; its hash is checked every time."""
    sdist = folder / SDIST_NAME
    if sdist.exists() and file_sha256(sdist) == SDIST_SHA256:
        return sdist
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        _download(Path(temporary), tools)
        downloaded = Path(temporary) / SDIST_NAME
        check_sha256(downloaded, SDIST_SHA256)
        downloaded.replace(sdist)
    return sdist


def _download(target: Path, tools: Path) -> None:
    requirement = target / "requirements.txt"
    requirement.write_text(SDIST_REQUIREMENT + "\n")
    # pip prepares the metadata of what it downloads; without isolation it uses the tools that are there.
    options = ("--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--require-hashes")
    outcome = pip(tools, "download", *options, "-d", target, "-r", requirement)
    if not outcome.ok:
        raise SetupError(f"cannot download {SDIST_NAME}: {pip_problem(outcome.output)}")


def check_sha256(path: Path, expected: str) -> None:
    if file_sha256(path) != expected:
        raise SetupError(
            f"{path.name} is not the file that is pinned: its SHA-256 differs; remove it and try again"
        )


def make_source(
    sdist: Path,
    source: Path,
    *,
    version: str,
    patched: bool,
    kernels: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Brings `source` to what is to be built. Files that are right already keep their time: ninja looks."""
    fresh = source.with_name(source.name + ".fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    extract(sdist, fresh)
    for name in BUILD_FILES:
        shutil.copy(NATIVE / name, fresh)
    # What the engine reads of its library: where it comes from, and which kernels a machine may choose from.
    build = {"llama.cpp": UPSTREAM_COMMIT, "kernels": kernels or {}}
    (fresh / "s2-build.json").write_text(json.dumps(build, indent=1) + "\n")
    if patched:
        set_version(fresh / "llama_cpp/__init__.py", version)
        for patch in patch_files():
            apply_patch(patch, fresh / _LLAMA_CPP)
        for path in sidecar_files():
            target = fresh / _LLAMA_CPP / "src" / path.relative_to(NATIVE)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    synchronise(fresh, source)
    shutil.rmtree(fresh)


def extract(sdist: Path, target: Path) -> None:
    """Unpacks what is built. The package's git links stay behind: git would take them for a repository."""
    with tarfile.open(sdist) as archive:
        for member in archive:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            file = archive.extractfile(member) if member.isfile() and _kept(path) else None
            if file is not None:
                (target / path).parent.mkdir(parents=True, exist_ok=True)
                (target / path).write_bytes(file.read())


def _kept(path: PurePosixPath) -> bool:
    return ".." not in path.parts and (
        str(path) in _KEPT_FILES or str(path).startswith(tuple(f"{d}/" for d in _KEPT_DIRS))
    )


def set_version(init: Path, version: str) -> None:
    old, new = (f'__version__ = "{v}"' for v in (UPSTREAM_VERSION, version))
    text = init.read_text()
    if old not in text:
        raise SetupError(f"{init.name} of the source package does not hold {old}")
    init.write_text(text.replace(old, new))


def synchronise(fresh: Path, source: Path) -> None:
    """Makes `source` equal to `fresh`, touching only what differs."""
    wanted = {path.relative_to(fresh) for path in fresh.rglob("*") if path.is_file()}
    for path in [path for path in source.rglob("*") if path.is_file()]:
        if path.relative_to(source) not in wanted:
            path.unlink()
    for name in wanted:
        target = source / name
        if not (target.exists() and filecmp.cmp(fresh / name, target, shallow=False)):
            target.parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).replace(target)
            target.touch()  # now, whatever the archive says: newer than any object made from the old one
