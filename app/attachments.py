"""Text files that go along with the next message, counted in tokens before they do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from app.entry import framed
from app.history import File
from app.text import one_line
from engine.errors import BadRequest, ContextFull, EngineUnavailable, S2Error
from engine.size import size
from engine.together import within

if TYPE_CHECKING:
    from app.link import EngineLink

_LIMIT_BYTES = 8 << 20


class Attachments:
    """`files` are those of the message that is being written."""

    def __init__(self, link: EngineLink) -> None:
        self.files: list[File] = []
        self._link = link

    async def add(self, path: Path, context_size: int) -> str:
        """Attaches the file and says what it takes. Raises S2Error with the reason when it cannot be used."""
        file = await asyncio.to_thread(read_text, path)
        tokens = await self._count(file)
        if context_size and tokens is not None and tokens >= context_size:
            raise ContextFull(f"{file.name} has {tokens} tokens, the context holds {context_size}")
        self.files.append(File(file.name, file.text, tokens))
        return (
            f"{file.name}: {tokens} tokens" if tokens is not None else f"{file.name} is attached, not counted"
        )

    async def _count(self, file: File) -> int | None:
        """None where no engine can count."""
        if not self._link.offer.is_ours:
            return None
        try:
            client = await within(3, self._link.client())
            return await client.count_text(framed(file))
        except ContextFull as error:
            raise ContextFull(f"{file.name}: {error.message}", hint="attach a part of it") from None
        except (EngineUnavailable, TimeoutError):
            return None

    def take(self) -> tuple[File, ...]:
        """The files, which from now on belong to a message."""
        files, self.files = tuple(self.files), []
        return files

    @property
    def words(self) -> str:
        """What is attached, "" for nothing."""
        if not self.files:
            return ""
        names = ", ".join(one_line(file.name) for file in self.files)
        tokens = sum(file.tokens or 0 for file in self.files)
        if not tokens:
            return f"+ {names}"
        sure = "" if all(file.tokens is not None for file in self.files) else "more than "
        return f"+ {names}, {sure}{tokens} tokens"


def read_text(path: Path) -> File:
    """The text file at `path`. Raises S2Error when it is none, or too large to be a message."""
    path = path.expanduser()
    try:
        if not path.is_file():  # a pipe or a device could keep us for ever
            raise BadRequest(f"{path} is not a file" if path.exists() else f"there is no file {path}")
        if (length := path.stat().st_size) > _LIMIT_BYTES:
            raise BadRequest(f"{path} has {size(length)}, {size(_LIMIT_BYTES)} is the limit")
        data = path.read_bytes()
    except OSError as error:
        raise S2Error(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = ""
    if (data and not text) or "\0" in text:
        raise BadRequest(f"{path} is not a text file in UTF-8")
    if not text.strip():
        raise BadRequest(f"{path} is empty")
    return File(path.name, text.replace("\r\n", "\n"))
