"""Devices one does not own, each made from documentation: to plan for them, and to test the plan."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from engine.device import Device
from engine.errors import BadRequest

_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "profiles"


@dataclass(frozen=True, slots=True)
class Profile:
    """`made_from`: what its figures rest on, for people; `sources` one by one."""

    name: str
    title: str
    made_from: str
    notes: str
    sources: tuple[str, ...]
    device: Device


def profile_names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def read_profile(words: str) -> Profile:
    """The profile of that name, or in a file of that path. Raises BadRequest with the names there are."""
    path = Path(words)
    if path.suffix != ".json":
        path = _FOLDER / f"{words.lower()}.json"
        if words.lower() not in profile_names():
            raise BadRequest(f"no device {words!r} is known", hint="one of " + ", ".join(profile_names()))
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Profile(
            name=path.stem,
            title=str(found["title"]),
            made_from=str(found["made_from"]),
            notes=str(found["notes"]),
            sources=tuple(map(str, found["sources"])),
            device=_device(found["device"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadRequest(
            f"{words}: no profile of a device: {type(error).__name__}: {error}",
            hint="those in assets/profiles show what belongs into one",
        ) from error


def _device(found: dict[str, object]) -> Device:
    """Raises TypeError or ValueError for what is not a device."""
    unknown = set(found) - {item.name for item in fields(Device)}
    if unknown:
        raise ValueError(f"unknown figures {sorted(unknown)}")
    device = Device(**{name: tuple(v) if isinstance(v, list) else v for name, v in found.items()})  # type: ignore[arg-type]
    numbers = [getattr(device, item.name) for item in fields(Device) if item.type == "int"]
    if not all(isinstance(number, int) and number >= 0 for number in numbers) or device.cores < 1:
        raise ValueError("figures are whole numbers of bytes, or bytes per second")
    return device
