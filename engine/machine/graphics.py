"""Which NVIDIA GPUs the driver knows, without asking it: a look at /proc takes no time."""

from __future__ import annotations

from pathlib import Path

from engine.machine.reading import Reading, read, text_of

_FOLDER = "proc/driver/nvidia"


def read_graphics(root: Path) -> dict[str, Reading]:
    """ "driver.gpus" with their names, "driver.version"; nothing where no such driver is loaded."""
    folder = root / _FOLDER
    if not folder.is_dir():
        return {}
    return {
        "driver.version": read(f"/{_FOLDER}/version", lambda: _version(root)),
        "driver.gpus": read(f"/{_FOLDER}/gpus", lambda: _names(folder / "gpus") or None),
    }


def _version(root: Path) -> str | None:
    words = text_of(root, f"{_FOLDER}/version").split("\n")[0].split()
    return next((word for word in words if word[:1].isdigit() and "." in word), None)


def _names(folder: Path) -> list[str]:
    names = []
    for information in sorted(folder.glob("*/information")):
        for line in information.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "Model":
                names.append(value.strip())
    return names
