"""One message of the transcript: who speaks, the text, thoughts folded away, a line on how it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rich.segment import Segment

from app.body import Body
from app.text import display
from engine.thoughts import Thoughts

if TYPE_CHECKING:
    from app.markdown import Line, MarkdownRenderer

Role = Literal["user", "assistant", "notice"]

_SHOWN_CHARACTERS = 12_000
_BAR = "┃ "
_MARGIN = Segment("  ")
_SIGN = "▲ "
_CHOSEN = "▌ "
_THOUGHT = Segment("│ ")
_STILL_THINKING = "▲ it was still thinking, there is no answer yet"


class Message:
    """What is shown, not what is stored: the text is safe for a terminal, the foot is ours.

    `place` says which of several versions this is, `files` names what is attached. `chosen` marks it.
    """

    def __init__(self, role: Role, text: str = "", foot: str = "", files: str = "") -> None:
        self.role: Role = role
        self.foot = foot
        self.place = ""
        self.files = files
        self.chosen = False
        self._thoughts = Thoughts()
        self._thought = ""
        self._thought_body: Body | None = None  # made only when it is opened
        if role == "assistant" and text:
            pieces = (self._thoughts.feed(text), self._thoughts.close())
            self._thought, text = ("".join(part) for part in zip(*pieces, strict=True))
            text = text.strip() if self._thoughts.seen else text
        self._body = Body(text, _MARGIN)

    @property
    def text(self) -> str:
        return self._body.text

    @property
    def has_thoughts(self) -> bool:
        return self._thoughts.seen

    def append(self, chunk: str) -> None:
        if self.role == "assistant":
            self._add(*self._thoughts.feed(chunk))
        else:
            self._body.append(chunk)

    def _add(self, thought: str, answer: str) -> None:
        if thought:
            self._thought += thought
            if self._thought_body is not None:
                self._thought_body.append(thought)
        if self._thoughts.seen and not self._body.text:
            answer = answer.lstrip()
        if answer:
            self._body.append(answer)

    def close(self, foot: str) -> None:
        self._add(*self._thoughts.close())
        self._body.close()
        if self._thoughts.open:
            foot = " · ".join(part for part in (_STILL_THINKING, foot) if part)
        self.foot = foot

    def fold(self) -> None:
        """Opens the thoughts, or closes them."""
        self._thought_body = Body(self._thought.strip(), _THOUGHT) if self._thought_body is None else None

    def lines(self, renderer: MarkdownRenderer, width: int) -> list[Line]:
        """The message's lines, `width` cells at most, with a blank line at the end."""
        palette = renderer.palette
        inner = max(1, width - len(_BAR))
        if self.role == "assistant":
            lines = self._body.lines(renderer, inner)
            if self._thoughts.seen:
                lines = [*self._thought_lines(renderer, inner), *lines]
        else:
            style, first, later = palette.user, Segment(_BAR, palette.bar), Segment(_BAR, palette.bar)
            if self.role == "notice":
                style, first, later = palette.notice, Segment(_SIGN, palette.notice), _MARGIN
            rows = renderer.plain(_abridged(self.text), inner, style)
            lines = [[later if at else first, *row] for at, row in enumerate(rows)]
        for words in (
            self.files and f"+ {self.files}",
            self.foot,
            self.place and f"{self.place} · Tab, then ← →",
        ):
            if words:
                rows = renderer.plain(display(words), inner, palette.meta)
                lines = lines + [[_MARGIN, *row] for row in rows]
        if self.chosen:
            mark = Segment(_CHOSEN, palette.bar)
            lines = [[mark, *line[1:]] for line in lines] or [[mark]]
        return [*lines, []]

    def _thought_lines(self, renderer: MarkdownRenderer, width: int) -> list[Line]:
        opened = self._thought_body is not None
        sign, what = ("▾", "closes") if opened else ("▸", "opens")
        state = "thinking" if self._thoughts.open and not self.foot else "thoughts"
        count = len(self._thought.split())
        words = f"{sign} {state}, {count} {'word' if count == 1 else 'words'} · F3 {what}"
        lines: list[Line] = [[_MARGIN, *row] for row in renderer.plain(words, width, renderer.palette.meta)]
        if self._thought_body is not None:
            lines += self._thought_body.lines(renderer, width)
        return [*lines, []]


def _abridged(text: str) -> str:
    """A pasted file is stored and sent whole, but shown by its start and end."""
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    half = _SHOWN_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} more characters …\n{text[-half:]}"
