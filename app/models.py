"""`s2chat models`: which models there are, how to get more, and packed copies of their experts."""

from __future__ import annotations

import json
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from app import exits
from app.fetch import Fetch, leftovers
from app.fetch import remove as remove_leftover
from app.flags import model_of
from app.hub import look_up
from app.inventory import Item, all_places, scan
from app.places import Place
from app.progress import Progress
from app.settings import read_settings
from app.text import one_line
from engine.device import detect
from engine.errors import BadRequest, ModelError, S2Error
from engine.pack import damaged, pack_of
from engine.packing import Packing, remove
from engine.paths import Paths, settings_file
from engine.plan import Wishes
from engine.size import size

_SHOWN = 5  # damaged records that are named


def models(arguments: Namespace) -> int:
    return _ACTIONS[arguments.action or "list"](arguments)


def _list(arguments: Namespace) -> int:
    places = getattr(arguments, "places", None)
    found = [_about(item) for item in _known(places)]
    if arguments.json:
        print(json.dumps(found))
        return exits.OK
    for about in found:
        print(f"{one_line(str(about['path']), 1000)}\n    {one_line(str(about['words']), 1000)}")
    for left in [] if places else leftovers(downloads()):
        print(f"unfinished: {one_line(left.name, 1000)}, {size(left.size)}")
        print("    `s2chat models get` with that name goes on, `s2chat models forget` removes it")
    return exits.OK


def _known(places: list[Path] | None) -> Iterator[Item]:
    """The models in `places`, or all that are found on this machine; a split set once."""
    settings = read_settings(settings_file())
    where = (
        tuple(Place(place, "") for place in places) if places else all_places(downloads(), settings.folders)
    )
    return scan(where, detect(), Wishes(budget=settings.get("engine.budget")))


def downloads() -> Path:
    """Where downloaded models are."""
    return read_settings(settings_file()).downloads or Paths.default().models


def _about(item: Item) -> dict[str, object]:
    """What the list says of a model; a file that cannot be used says why."""
    path, info = item.path, item.info
    about: dict[str, object] = {"path": str(path), "tool": item.tool, "packed": None}
    if info is None:
        return {**about, "words": f"cannot be used: {item.verdict.words}"}
    about |= {"name": info.name, "bytes": info.size_bytes, "experts": info.n_expert, "quant": info.quant}
    about |= {"verdict": item.verdict.word, "why": item.verdict.words}
    words = f"{info.name}, {size(info.size_bytes)}, {info.quant}, {item.verdict.word}, "
    try:
        packing = Packing(path)
    except ModelError:
        return {**about, "words": words + "no experts to pack"}
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


def _get(arguments: Namespace) -> int:
    offer = look_up(arguments.name)
    folder = downloads()
    files = f"{len(offer.files)} files, " if len(offer.files) > 1 else ""
    print(f"{one_line(offer.name, 1000)}: {files}{size(offer.size)}, to {folder}", file=sys.stderr)
    try:
        with Progress() as progress:
            path = Fetch(offer, folder, progress).run()
    except KeyboardInterrupt:
        print("stopped; the same command goes on from there", file=sys.stderr)
        return exits.CANCELLED
    print(f"here and verified. To chat with it: s2chat -m {path}")
    return exits.OK


def _forget(_: Namespace) -> int:
    found = leftovers(downloads())
    for left in found:
        remove_leftover(left)
        print(f"removed {one_line(left.name, 1000)}, {size(left.size)}")
    if not found:
        print("no download was left unfinished", file=sys.stderr)
    return exits.OK


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
    with Progress() as progress:
        place = packing.write(progress)
    print(f"packed in {time.monotonic() - started:.0f} s: {place}")
    return exits.OK


def _agreed(packing: Packing, model: Path) -> bool:
    """Whether the user wants the file that is to be written."""
    begun = f", {size(packing.begun)} of them are there" if packing.begun else ""
    free = "" if packing.free is None else f"; {size(packing.free)} are free there"
    said = f"this writes {size(packing.size)}{begun} to {packing.place}{free}"
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
    with Progress() as progress:
        bad = damaged(packing.found, packing.blueprint, progress)
    if bad:
        more = f" and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise S2Error(
            f"{packing.found} is damaged: {', '.join(bad[:_SHOWN])}{more}",
            hint="remove it with `s2chat models rm`, and make it anew with `s2chat models pack`",
        )
    print(f"as it was written, {packing.blueprint.n_records} records: {packing.found}")
    return exits.OK


def _info(arguments: Namespace) -> int:
    from app.planning import info

    return info(arguments)


def _reasons(model: Path) -> list[str]:
    """Why packs that are there are not used."""
    reasons: list[str] = []
    pack_of(model, reasons.append)
    return reasons


_ACTIONS = {
    "list": _list,
    "get": _get,
    "forget": _forget,
    "pack": _pack,
    "rm": _rm,
    "check": _check,
    "info": _info,
}
