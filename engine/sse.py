"""Server-sent events, put together from bytes wherever these were cut."""

from __future__ import annotations

from collections.abc import Iterator

_MOST_BYTES = 16 << 20  # of one line


class Events:
    """Every `data:` line is one event, as all servers of this kind send them.

    Lines end where bytes say so and nowhere else: JSON may hold characters that Python's `splitlines`
    takes for an end.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[str]:
        """The data of the events that `piece` completes. Raises ValueError for a line without an end."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > _MOST_BYTES:
            raise ValueError("a line without an end")
        for line in lines:
            yield from _data(line)

    def close(self) -> Iterator[str]:
        """A last line that was not ended."""
        line, self._rest = self._rest, b""
        yield from _data(line)


def _data(line: bytes) -> Iterator[str]:
    name, colon, value = line.rstrip(b"\r").partition(b":")
    if colon and name in (b"data", b"error"):  # llama.cpp once named errors so
        yield value.decode("utf-8", "replace").strip()
