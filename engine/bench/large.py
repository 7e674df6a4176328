"""`bench large`: a large MoE model with the text of a small one, for stores that read experts from disk."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from engine.bench.interrupt import interruptible
from engine.bench.widen import Widened, Widening
from engine.errors import BadRequest, Busy, Cancelled, S2Error
from engine.machine.disk import free_bytes
from engine.model import files_of, stem_of
from engine.paths import models_cache

_FORMAT = 1  # goes up when the same size and seed give other bytes
_GIB = 1 << 30


def run(args: Namespace) -> None:
    """Makes the model, or finds it in the cache, and says where it is and how large it came out."""
    widening = Widening(args.model)
    widened = widening.reaching(args.bytes)
    if args.output is None:
        path = _cached(args.model, args.bytes, args.seed)
        made = not (path.is_file() and path.stat().st_size == widened.size)
    elif args.output.exists():
        raise BadRequest(f"{args.output} is there already", hint="remove it, or give another name with -o")
    else:
        path, made = args.output, True
    if made:
        _make(widened, path, args.seed)
    _say(widened, path.absolute(), widening.width, as_json=args.json)


def _cached(source: Path, size: int, seed: int) -> Path:
    digest = hashlib.sha256(f"{_FORMAT} {size} {seed} ".encode())
    for path in files_of(source):
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return models_cache() / f"{stem_of(source)}-{size}-{digest.hexdigest()[:16]}.gguf"


def _make(widened: Widened, path: Path, seed: int) -> None:
    """Writes the model beside `path` and gives it that name when every byte is on the disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with interruptible(), _part_of(path) as file:
            _check_room(path.parent, widened.size)
            widened.write(file, seed, _progress(widened.size))
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).replace(path)
        _sync_folder(path.parent)
    except KeyboardInterrupt:
        raise Cancelled(f"{path}: stopped, nothing was kept") from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise S2Error(f"{path}: the disk filled up meanwhile, nothing was kept") from error
        raise S2Error(f"{path}: {error.strerror or error}", hint="choose another place with -o") from error


@contextmanager
def _part_of(path: Path) -> Iterator[BinaryIO]:
    """The unfinished file beside `path`, ours alone; removed when the work on it fails.

    It always has the same name: what a killed run leaves is for the next run to overwrite.
    """
    part = path.with_name(path.name + ".part")
    with open(part, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Busy(f"{path} is being made by another run") from None
        if not (part.exists() and os.path.samestat(part.stat(), os.fstat(file.fileno()))):
            raise Busy(f"{path} was finished by another run just now", hint="run it again")
        file.truncate(0)
        try:
            yield file
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _check_room(folder: Path, size: int) -> None:
    free = free_bytes(folder)
    if free is not None and free < size:
        raise S2Error(
            f"{folder} has no room: {_human(size)} wanted, {_human(size - free)} missing",
            hint="make room, or choose another place with -o",
        )


def _progress(whole: int) -> Callable[[int], None]:
    """Shows percents on a terminal."""
    if not sys.stderr.isatty():
        return lambda _: None
    shown = -1

    def show(done: int) -> None:
        nonlocal shown
        if shown != (percent := 100 * done // whole):
            shown = percent
            print(f"\r{percent:3d} %", end="\r", file=sys.stderr, flush=True)

    return show


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)  # the new name, too, outlives a power cut
    finally:
        os.close(handle)


def _say(widened: Widened, path: Path, width: int, *, as_json: bool) -> None:
    if as_json:
        found = {
            "path": str(path),
            "bytes": widened.size,
            "experts_bytes": widened.experts_size,
            "n_ff_exp": widened.n_ff_exp,
        }
        print(json.dumps(found))
        return
    print(path)
    print(
        f"{widened.size:,} bytes ({_human(widened.size)}), {_human(widened.experts_size)} of them experts; "
        f"{widened.n_ff_exp} neurons in each, {width} of them the model's own"
    )


def _human(size: int) -> str:
    return f"{size / _GIB:,.2f} GiB" if size >= _GIB else f"{size / (1 << 20):,.1f} MiB"
