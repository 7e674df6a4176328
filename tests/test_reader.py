"""The reader of the model's files, plain and with what finds races and stray writes, on real filesystems."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from mounts import loop_mounted, overlay_mounted
from native_build import STORE, built, sanitizer_flaw, started, system_compiler
from s2build.machine import Compiler
from s2build.recipe import NATIVE

SOURCES = [
    *(STORE / f"s2-{name}.cpp" for name in ("files", "read-queue", "ring")),
    *sorted(STORE.glob("s2-reader*.cpp")),
    NATIVE / "tests/reader_check.cpp",
]
CASES = 14  # for each way to read


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return system_compiler()


@pytest.fixture(scope="module")
def plain(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(compiler, "plain", SOURCES, tmp_path_factory.mktemp("plain"))


def test_as_it_is(plain: Path, tmp_path: Path) -> None:
    checked(plain, tmp_path)


@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_sanitized(sanitizer: str, compiler: Compiler, tmp_path: Path) -> None:
    flaw = sanitizer_flaw(compiler, sanitizer, tmp_path)
    if flaw:
        pytest.skip(f"no {sanitizer} sanitizer here: {flaw}")
    # The slow probe of `auto` is left to the plain program, its ways are all there.
    program = built(compiler, sanitizer, SOURCES, tmp_path)
    checked(program, tmp_path, "buffered", "direct", "io_uring", "io_uring-buffered")


def test_memory_filesystem(plain: Path) -> None:
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        pytest.skip("no /dev/shm to write to")
    with ExitStack() as stack:
        mine = folder / f"s2-reader-{os.getpid()}"
        mine.mkdir()
        stack.callback(shutil.rmtree, mine)
        checked(plain, mine, "auto", "direct", "io_uring")


@pytest.mark.parametrize(
    ("filesystem", "sector"), [("ext4", 4096), ("exfat", 512), ("exfat", 4096)], ids=lambda value: str(value)
)
def test_loop_device(filesystem: str, sector: int, plain: Path, tmp_path: Path) -> None:
    with loop_mounted(filesystem, sector, tmp_path) as folder:
        checked(plain, folder, "auto", "direct", "io_uring")


def test_overlay(plain: Path, tmp_path: Path) -> None:
    with overlay_mounted(tmp_path) as folder:
        checked(plain, folder, "auto", "direct", "io_uring")


def checked(program: Path, folder: Path, *methods: str) -> None:
    """Runs the check with files in `folder`; what it prints is the failure's text."""
    run = started([program, folder, *methods], 240)
    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    assert "WRONG" not in run.stdout
    assert run.stdout.count("right") >= CASES * max(len(methods), 1)
