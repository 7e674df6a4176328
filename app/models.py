"""`s2chat models`: which models there are, and packed copies of their experts."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path

from app import exits
from app.flags import model_of
from app.text import one_line
from engine.errors import BadRequest, ModelError, S2Error
from engine.model import read_model_info
from engine.pack import damaged, pack_of
from engine.packing import Packing, remove
from engine.paths import EMBEDDED_MODEL, models_cache
from engine.size import size

_SHOWN = 5  # damaged records that are named
_EACH_S = 0.2  # between two looks of the progress


def models(arguments: Namespace) -> int:
    return _ACTIONS[arguments.action or "list"](arguments)


def _list(arguments: Namespace) -> int:
    found = [_about(path) for path in _known(getattr(arguments, "places", None))]
    if arguments.json:
        print(json.dumps(found))
        return exits.OK
    for item in found:
        print(f"{one_line(str(item['path']))}\n    {one_line(str(item['words']))}")
    return exits.OK


def _known(places: list[Path] | None) -> Iterator[Path]:
    """The models in `places`, or those the program has by itself; a split set once."""
    seen = set()
    for place in places or [EMBEDDED_MODEL, models_cache()]:
        if place.is_dir():
            files: Iterable[Path] = sorted(file for file in place.iterdir() if file.suffix.lower() == ".gguf")
        else:
            files = [place] if places or place.exists() else []
        for file in files:
            try:
                path = read_model_info(file).path
            except ModelError:
                path = file
            if path not in seen:
                seen.add(path)
                yield path


def _about(path: Path) -> dict[str, object]:
    """What the list says of a model; a file that cannot be used says why."""
    about: dict[str, object] = {"path": str(path)}
    try:
        info = read_model_info(path)
        about |= {"name": info.name, "bytes": info.size_bytes, "experts": info.n_expert}
    except ModelError as error:
        return {**about, "packed": None, "words": f"cannot be used: {error.line()}"}
    words = f"{info.name}, {size(info.size_bytes)}, "
    try:
        packing = Packing(path)
    except ModelError:
        return {**about, "packed": None, "words": words + "no experts to pack"}
    about["packed"] = str(packing.found) if packing.found else None
    if packing.found:
        words += f"packed in {size(packing.size)}: {packing.found}"
    elif packing.begun:
        words += f"packed in part, {size(packing.begun)} of {size(packing.size)}"
    elif reasons := _reasons(path):
        words += reasons[0]
    else:
        words += f"not packed, that would take {size(packing.size)}"
    return {**about, "words": words}


def _pack(arguments: Namespace) -> int:
    model = model_of(arguments)
    packing = Packing(model)
    if packing.found is not None:
        print(f"packed already: {packing.found}")
        return exits.OK
    packing.check_room()
    if not arguments.yes and not _agreed(packing, model):
        print("nothing was written", file=sys.stderr)
        return exits.CANCELLED
    started = time.monotonic()
    with _Progress() as progress:
        place = packing.write(progress)
    print(f"packed in {time.monotonic() - started:.0f} s: {place}")
    return exits.OK


def _agreed(packing: Packing, model: Path) -> bool:
    """Whether the user wants the file that is to be written."""
    begun = f", {size(packing.begun)} of them are there" if packing.begun else ""
    said = f"this writes {size(packing.size)}{begun} to {packing.place}; {size(packing.free)} are free there"
    if sys.stdin is None or not sys.stdin.isatty():
        raise BadRequest(said, hint="--yes does it without being asked")
    print(f"{one_line(said[0].upper() + said[1:], 1000)}.", file=sys.stderr)
    print(f"`s2chat models rm {one_line(str(model), 1000)}` removes it.", file=sys.stderr)
    print("Write it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _rm(arguments: Namespace) -> int:
    model = model_of(arguments)
    gone = remove(model)
    if not gone:
        print(f"there is no pack of {one_line(str(model), 1000)}", file=sys.stderr)
        return exits.OK
    for file, _ in gone:
        print(f"removed {one_line(str(file), 1000)}")
    freed = sum(count for _, count in gone)
    print(f"{freed:,} bytes ({size(freed)}) freed")
    return exits.OK


def _check(arguments: Namespace) -> int:
    model = model_of(arguments)
    packing = Packing(model)
    if packing.found is None:
        reasons = _reasons(model)
        raise S2Error(
            reasons[0] if reasons else f"there is no pack of {model}",
            hint="" if reasons else "`s2chat models pack` makes one",
        )
    with _Progress() as progress:
        bad = damaged(packing.found, packing.blueprint, progress)
    if bad:
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise S2Error(
            f"{packing.found} is damaged: {', '.join(bad[:_SHOWN])}{more}",
            hint="remove it with `s2chat models rm`, and make it anew with `s2chat models pack`",
        )
    print(f"as it was written, {packing.blueprint.n_records} records: {packing.found}")
    return exits.OK


def _reasons(model: Path) -> list[str]:
    """Why packs that are there are not used."""
    reasons: list[str] = []
    pack_of(model, reasons.append)
    return reasons


class _Progress:
    """A line on the terminal with the share that is done, the speed and the time that is left."""

    def __init__(self) -> None:
        self._visible = sys.stderr is not None and sys.stderr.isatty()
        self._what, self._from, self._since, self._next = "", 0, 0.0, 0.0

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._visible and self._what:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def __call__(self, what: str, done: int, whole: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._from, self._since, self._next = what, done, now, now
        if self._visible and now >= self._next:
            self._next = now + _EACH_S
            print(f"\r\x1b[K{self._line(done, whole, now)}", end="", file=sys.stderr, flush=True)

    def _line(self, done: int, whole: int, now: float) -> str:
        line = f"{self._what} {100 * done // whole}% of {size(whole)}"
        speed = (done - self._from) / (now - self._since) if now > self._since else 0.0
        if speed:
            line += f", {size(speed)}/s, {_time((whole - done) / speed)} left"
        return line


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


_ACTIONS = {"list": _list, "pack": _pack, "rm": _rm, "check": _check}
