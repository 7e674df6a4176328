"""A message of the open conversation: as the model gets it, and as it stands on the screen."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from app.labels import foot, stored_timings
from app.message import Message
from engine.request import is_lossy
from engine.thoughts import split

if TYPE_CHECKING:
    from collections.abc import Sequence

    from app.history import File, Status, Stored, Values
    from engine.events import Timings

CUT = "cut"


@dataclass(eq=False)
class Entry:
    """`id` is None when it is not stored; `kept` says that the history has it as it stands here.

    `mode` wrote it; a lossy one that wrote only a part of it makes all of it lossy, and stays.

    `role` is user, assistant, or `CUT`: from there on the model is told the `keeps` messages before it, and
    instead of what was before those its text, a summary, if it has any.
    """

    role: str
    text: str
    status: Status
    parent: Entry | None = None
    id: int | None = None
    timings: Timings | None = None
    mode: str = ""
    end: str = ""
    kept: bool = True
    files: tuple[File, ...] = ()
    keeps: int = 0
    versions: list[Entry] = field(default_factory=list, repr=False)

    @cached_property
    def view(self) -> Message:
        """Made when it is shown: a conversation may have a thousand messages."""
        if self.role == CUT:
            return Message("notice", cut_words(self))
        view = Message(
            "user" if self.role == "user" else "assistant", self.text, files=file_words(self.files)
        )
        if self.role == "assistant" and self.status != "streaming":
            view.close(foot(self.end or self.status, self.mode, self.timings))
        view.place = self.place
        return view

    @property
    def told(self) -> str:
        """What the model gets: attached files behind the text, an answer without its thoughts."""
        if self.role != "user":
            return split(self.text)[1]
        return "\n\n".join([self.text, *(framed(file) for file in self.files)]) if self.files else self.text

    def mode_after(self, mode: str) -> str:
        """What `mode` is when text that is written in `mode` is added."""
        return self.mode if is_lossy(self.mode) or not mode else mode

    @property
    def place(self) -> str:
        """Which of its versions this is, "" when it is the only one."""
        count = len(self.versions)
        return f"version {self.versions.index(self) + 1} of {count}" if count > 1 else ""

    @property
    def values(self) -> Values:
        values: dict[str, float | str] = {**(self.timings.as_json() if self.timings else {}), "end": self.end}
        return values | ({"keeps": self.keeps} if self.role == CUT else {})


def from_stored(stored: Stored) -> Entry:
    end = str(stored.timings.get("end", ""))
    keeps = stored.timings.get("keeps", 0)
    return Entry(
        stored.role,
        stored.content,
        stored.status,
        id=stored.id,
        timings=stored_timings(stored.timings),
        mode=stored.mode or "",
        end=end,
        files=stored.files,
        keeps=int(keeps) if isinstance(keeps, (int, float)) else 0,
    )


def framed(file: File) -> str:
    """A file as the model gets it, in a fence that nothing in it can end."""
    fence = "```"
    while fence in file.text:
        fence += "`"
    return f"File {file.name}:\n{fence}\n{file.text.rstrip()}\n{fence}"


def file_words(files: Sequence[File]) -> str:
    """One line that names attached files."""
    return ", ".join(f"{file.name} ({file.tokens} tokens)" if file.tokens else file.name for file in files)


def cut_words(entry: Entry) -> str:
    kept = f"the {entry.keeps} messages before this line" if entry.keeps else "nothing before this line"
    words = f"To make room the model is told {kept}"
    if entry.text:
        return f"{words}, and of all that was before only this summary:\n{entry.text}"
    return f"{words}; all that was before stays here for you to read."
