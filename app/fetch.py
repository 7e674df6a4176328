"""Fetches a model's files: resumable, room checked first, every byte verified before a file gets its name.

A file that is on its way is NAME.SHA.part: the checksum says of which content it is a part, so what the hub
replaced is never gone on with. Only after all files of a set are verified do they become .gguf.
"""

# ruff: noqa: N818 -- names say what happened, as in engine.errors
from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.hub import endpoint, package, told
from engine.errors import Busy, Cancelled, S2Error
from engine.size import size

if TYPE_CHECKING:
    from app.hub import Offer, RemoteFile

Report = Callable[[str, int, int], None]

_PART = re.compile(r"(?P<name>.+)\.(?P<sha>[0-9a-f]{16})\.part")
_NUMBER = re.compile(r"-\d{5}-of-\d{5}(?=\.gguf$)", re.IGNORECASE)
_SPARE_BYTES = 256 << 20  # chats want room on the disk as well
_SPARE_PART = 100  # of a small disk a hundredth
_SILENCE_S = 30.0
_RETRIES = 5  # without a byte in between
_WAIT_S = 1.0  # before another try, longer each time
_PIECE = 1 << 20


class DiskFull(S2Error):
    """The disk has no room; what is there is kept."""


class Mismatch(S2Error):
    """What arrived is not what was promised; it is gone."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Files of an unfinished download. `name` as `look_up` reads it."""

    name: str
    parts: tuple[Path, ...]
    size: int


class Fetch:
    """`run` blocks; `cancel` may come from any other thread. What arrived is kept for the next time."""

    def __init__(self, offer: Offer, folder: Path, report: Report) -> None:
        self._offer = offer
        self._root = folder / offer.repo
        self._report = report
        self._complete = 0  # bytes of files that are verified
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def run(self) -> Path:
        """The model's first file, once all are there and verified.

        Raises Cancelled, DiskFull, Mismatch, Busy when another program fetches it, and S2Error when the hub
        cannot be reached.
        """
        try:
            missing = [file for file in self._offer.files if not self._is_there(file)]
            self._complete = self._offer.size - sum(file.size for file in missing)
            for file in missing:
                self._place(file).parent.mkdir(parents=True, exist_ok=True)
                self._drop_outdated(file)
            self._check_room(missing)
            for file in missing:
                with self._open_part(file) as part:
                    self._transfer(file, part)
                    self._verify(file, part)
                self._complete += file.size
            for file in reversed(missing):  # the first one last: a set that has it is whole
                self._part(file).replace(self._place(file))
        except OSError as error:
            raise self._kept(error) from error
        return self._place(self._offer.files[0])

    # Files

    def _place(self, file: RemoteFile) -> Path:
        return self._root / file.name

    def _part(self, file: RemoteFile) -> Path:
        place = self._place(file)
        return place.with_name(f"{place.name}.{file.sha256[:16]}.part")

    def _have(self, file: RemoteFile) -> int:
        """Bytes of its part."""
        try:
            return self._part(file).stat().st_size
        except FileNotFoundError:
            return 0

    def _is_there(self, file: RemoteFile) -> bool:
        """Whether it was fetched before. A file of that name which is another's is fetched anew."""
        place = self._place(file)
        return (
            place.is_file() and place.stat().st_size == file.size and self._digest(file, place) == file.sha256
        )

    def _drop_outdated(self, file: RemoteFile) -> None:
        """Parts of what the hub had before can never be finished."""
        place = self._place(file)
        for path in place.parent.iterdir():
            match = _PART.fullmatch(path.name)
            if match and match["name"] == place.name and path != self._part(file):
                path.unlink()

    def _check_room(self, missing: Sequence[RemoteFile]) -> None:
        need = sum(max(0, file.size - self._have(file)) for file in missing)
        if not need:
            return
        usage = shutil.disk_usage(self._root)
        room = usage.free - min(_SPARE_BYTES, usage.total // _SPARE_PART)
        if usage.total and need > room:  # file systems in memory and over some networks do not count
            raise DiskFull(
                f"{size(need)} are still to come, {size(max(0, room))} are free for it in {self._root}",
                hint="make room, or set models.downloads to a folder on another disk",
            )

    @contextmanager
    def _open_part(self, file: RemoteFile) -> Iterator[FileIO]:
        with open(os.open(self._part(file), os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0) as part:
            try:
                fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(f"another program is fetching {file.name}") from None
            yield part

    def _kept(self, error: OSError) -> S2Error:
        have = sum(self._have(file) for file in self._offer.files)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return DiskFull(
                f"paused, the disk is full: {size(have)} of {size(self._offer.size)} are in {self._root}",
                hint="make room, then ask for it again: it goes on from there",
            )
        return S2Error(f"the download cannot be written: {error.strerror or error} ({self._root})")

    # The network

    def _transfer(self, file: RemoteFile, part: FileIO) -> None:
        """Until the part is as long as the file. A connection that breaks goes on where it broke; one that
        brings nothing five times in a row ends it."""
        failures, best = 0, part.seek(0, os.SEEK_END)
        while (have := part.seek(0, os.SEEK_END)) != file.size:
            if have > file.size:
                have = best = part.truncate(0)
            try:
                self._receive(file, part, have)
                problem = S2Error(f"the hub sends another length of {file.name} than it promised")
            except ConnectionError as error:
                problem = S2Error(
                    f"offline: the connection to the hub broke ({error})", hint="ask for it again to go on"
                )
            arrived = part.seek(0, os.SEEK_END)
            # What was lost and comes again is no progress, or a server could go on like that for ever.
            failures = 0 if best < arrived <= file.size else failures + 1
            best = max(best, min(arrived, file.size))
            if failures >= _RETRIES:
                raise problem
            if self._cancelled.wait(failures * _WAIT_S):
                raise Cancelled("the download was stopped")

    def _receive(self, file: RemoteFile, part: FileIO, have: int) -> None:
        """One request. Raises ConnectionError for what may go better the next time."""
        hub = package()
        from httpx2 import HTTPError, TransportError

        url = hub.hf_hub_url(self._offer.repo, file.name, revision=self._offer.revision, endpoint=endpoint())
        headers = {**hub.utils.build_hf_headers(), "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        try:
            with hub.utils.get_session().stream(
                "GET", url, headers=headers, follow_redirects=True, timeout=_SILENCE_S
            ) as reply:
                if reply.status_code in (408, 429) or reply.status_code >= 500:
                    raise ConnectionError(f"error {reply.status_code}")
                if reply.status_code != 416:
                    hub.utils.hf_raise_for_status(reply)
                self._start(part, have, reply)
                if reply.status_code != 416:
                    self._write(file, part, reply)
        except hub.errors.OfflineModeIsEnabled as error:
            raise told(error, self._offer.repo) from error
        except TransportError as error:
            raise ConnectionError(str(error) or type(error).__name__) from error
        except HTTPError as error:
            raise told(error, self._offer.repo) from error

    @staticmethod
    def _start(part: FileIO, have: int, reply: Any) -> None:
        """Puts the part where the reply begins: a server may send the whole though a range was asked for."""
        if reply.status_code != 206:
            part.truncate(0)
        elif reply.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0] != str(have):
            raise ConnectionError("another range than was asked for")
        part.seek(0, os.SEEK_END)

    def _write(self, file: RemoteFile, part: FileIO, reply: Any) -> None:
        done = part.tell()
        for piece in reply.iter_raw():
            if self._cancelled.is_set():
                raise Cancelled("the download was stopped")
            view = memoryview(piece)
            while view:  # a disk that fills up takes a part of it
                view = view[part.write(view) or 0 :]
            done += len(piece)
            if done > file.size:
                return  # more than was promised: the loop outside starts over
            self._report("fetching", self._complete + done, self._offer.size)

    # What arrived

    def _verify(self, file: RemoteFile, part: FileIO) -> None:
        os.fsync(part.fileno())
        got = self._digest(file, self._part(file))
        if got != file.sha256:
            self._part(file).unlink()
            raise Mismatch(
                f"{file.name} is not what the hub promised and was thrown away: "
                f"sha256 wanted {file.sha256}, got {got}",
                hint="ask for it again; if that happens twice the file is damaged at its source",
            )

    def _digest(self, file: RemoteFile, path: Path) -> str:
        digest, done = hashlib.sha256(), 0
        with open(path, "rb", buffering=0) as data:
            while piece := data.read(_PIECE):
                if self._cancelled.is_set():
                    raise Cancelled("the download was stopped")
                digest.update(piece)
                done += len(piece)
                self._report(f"verifying {Path(file.name).name}", done, file.size)
        return digest.hexdigest()


def leftovers(folder: Path) -> list[Leftover]:
    """Downloads below `folder` that were begun and not finished."""
    sets: dict[str, list[tuple[str, Path]]] = {}
    for path in sorted(folder.rglob("*.part")):
        match = _PART.fullmatch(path.name)
        owner, _, rest = path.parent.relative_to(folder).as_posix().partition("/")
        repo, _, inner = rest.partition("/")
        if match and repo:
            name = f"{owner}/{repo}:{inner + '/' if inner else ''}{match['name']}"
            sets.setdefault(_NUMBER.sub("", name), []).append((name, path))
    return [
        Leftover(parts[0][0], tuple(path for _, path in parts), sum(path.stat().st_size for _, path in parts))
        for parts in sets.values()
    ]


def remove(leftover: Leftover) -> None:
    """Frees its room. Raises S2Error when that fails."""
    try:
        for path in leftover.parts:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise S2Error(f"{leftover.name} was not removed: {error.strerror}") from error
