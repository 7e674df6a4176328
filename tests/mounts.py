"""Filesystems of their own, for as long as a test takes. They need root; tests are skipped without."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from engine.bench.disk import drop_cached


@contextmanager
def loop_mounted(filesystem: str, sector: int, folder: Path, size: int = 96 << 20) -> Iterator[Path]:
    """A small filesystem of its own, on a device with sectors of so many bytes; `folder` has its "image"."""
    image, point = folder / "image", folder / "mounted"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    with ExitStack() as stack:
        device = tried("losetup", "--find", "--show", "--sector-size", str(sector), str(image)).strip()
        stack.callback(subprocess.run, ["losetup", "--detach", device], check=False)
        tried(f"mkfs.{filesystem}", device)
        with mounted(mount_command(filesystem, device), point) as mount:
            yield mount


@contextmanager
def overlay_mounted(folder: Path) -> Iterator[Path]:
    parts = {name: folder / name for name in ("lower", "upper", "work", "merged")}
    for part in parts.values():
        part.mkdir()
    options = "lowerdir={lower},upperdir={upper},workdir={work}".format(**parts)
    with mounted(["mount", "-t", "overlay", "overlay", "-o", options], parts["merged"]) as point:
        yield point


@contextmanager
def memory_mounted(folder: Path, filesystem: str) -> Iterator[Path]:
    """tmpfs, or ramfs, which refuses reads past the page cache."""
    point = folder / "memory"
    point.mkdir()
    with mounted(["mount", "-t", filesystem, filesystem], point) as mount:
        yield mount


@contextmanager
def failing_from(image: Path, mark: bytes, point: Path) -> Iterator[None]:
    """The disk that `image` is, mounted at `point`, cannot be read from `mark` on while this lasts."""
    tried("mount", "-o", "remount,ro", str(point))  # a write would make the image longer again
    whole = image.read_bytes()
    at = whole.index(mark) // 4096 * 4096
    os.truncate(image, at)
    try:
        yield
    finally:
        with image.open("r+b") as file:
            file.seek(at)
            file.write(whole[at:])


def forgotten(*files: Path) -> None:
    """What the kernel keeps of the files' content goes: the next look is at the disk."""
    subprocess.run(["sync", *map(str, files)], check=True)  # what is not written yet cannot go
    drop_cached(files)


def mount_command(filesystem: str, device: str) -> list[str]:
    """Kernels without exFAT may have it through FUSE."""
    in_kernel = filesystem in Path("/proc/filesystems").read_text().split()
    helper = shutil.which(f"mount.{filesystem}-fuse")
    return [helper, device] if helper and not in_kernel else ["mount", "-t", filesystem, device]


@contextmanager
def mounted(command: list[str], point: Path) -> Iterator[Path]:
    tried(*command, str(point))
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


def tried(*command: str) -> str:
    """What the command printed; skips the test where this machine has or allows no such thing."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    program = shutil.which(command[0])
    if not program:
        pytest.skip(f"no {command[0]} here")
    run = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=60)
    if run.returncode:
        pytest.skip(f"{command[0]}: {run.stderr.strip()}")
    return run.stdout
