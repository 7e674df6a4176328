"""The conversation on screen: one scrollable view that draws lines, because widgets per block cost too much.

While an answer streams in, both cores of a small board decode. A tree of Markdown widgets takes a quarter of
a core at ten updates a second; drawing only the visible lines of a flat list takes a tenth of that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from app.markdown import Line, MarkdownRenderer, Palette
from app.message import Message

if TYPE_CHECKING:
    from textual import events
    from textual.screen import Screen
    from textual.selection import Selection

_RESIZE_REST_S = 0.06
_BAR_STEPS = 2  # positions of the scroll bar per cell
_PAGE = 30  # messages that are shown at first and added when the view reaches its top


class Transcript(ScrollView, can_focus=False):
    """Keeps the end in view unless the user scrolled up."""

    # While a message is chosen the focus is here; otherwise all keys belong to the prompt.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k,shift+tab", "app.move(-1)", show=False),
        Binding("down,j,tab", "app.move(1)", show=False),
        Binding("e", "app.chosen('edit')", show=False),
        Binding("r", "app.chosen('again')", show=False),
        Binding("g", "app.chosen('on')", show=False),
        Binding("c,y", "app.chosen('copy')", show=False),
        Binding("o", "app.chosen('thoughts')", show=False),
        Binding("left", "app.chosen('earlier')", show=False),
        Binding("right", "app.chosen('later')", show=False),
        Binding("q,i,enter", "app.chosen('leave')", show=False),
        *(Binding(f"{number}", f"app.chosen('{number}')", show=False) for number in range(1, 10)),
    ]

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "transcript--user",
        "transcript--bar",
        "transcript--heading",
        "transcript--code",
        "transcript--block",
        "transcript--quote",
        "transcript--link",
        "transcript--meta",
        "transcript--notice",
    }

    def __init__(self, placeholder: str) -> None:
        super().__init__(id="transcript")
        self._placeholder = Message("assistant", placeholder)
        self._messages: list[Message] = []
        self._first = 0  # earlier messages are not drawn yet
        self._starts: list[int] = []  # first line of each drawn message
        self._lines: list[Line] = []
        self._ready: dict[int, Strip] = {}  # drawn lines by number
        self._renderer: MarkdownRenderer | None = None
        self._restyles = False
        self._drawn_width = 0
        self._bar_looks: tuple[int, ...] = ()
        self._following = True

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    # What is shown

    def load(self, messages: list[Message], *, keep_notices: bool = False) -> None:
        """Shows `messages`; with `keep_notices` those stay that were added among the ones shown before."""
        notices = (
            [m for m in self._messages if m.role == "notice" and m not in messages] if keep_notices else []
        )
        before = {id(m): self._messages[at - 1] if at else None for at, m in enumerate(self._messages)}
        self._messages = list(messages)
        for notice in notices:
            place = before[id(notice)]
            at = self._messages.index(place) + 1 if place in self._messages else len(self._messages)
            self._messages.insert(at, notice)
        self._first = max(0, len(self._messages) - _PAGE)
        self._draw_all(follow=True)

    def add(self, message: Message) -> None:
        """Puts `message` at the end and brings it into view."""
        self._messages.append(message)
        if len(self._messages) == 1:
            self._draw_all(follow=True)
        else:
            self._draw_from(len(self._messages) - 1, follow=True)

    def redraw(self, message: Message) -> None:
        """Shows what changed in `message`; cheap when it is among the last."""
        if message in self._messages:
            self._draw_from(self._messages.index(message), follow=self._following)

    def choose(self, message: Message | None) -> None:
        """Marks `message` alone, None for none, and brings it into view."""
        for other in self._messages:
            if other.chosen != (other is message):
                other.chosen = other is message
                self.redraw(other)
        if message is None or message not in self._messages:
            return
        index = self._messages.index(message)
        while index < self._first:
            self._reveal()
        start = self._starts[index - self._first] if index - self._first < len(self._starts) else 0
        follows = index - self._first + 1
        end = self._starts[follows] if follows < len(self._starts) else len(self._lines)
        top, height = round(self.scroll_y), self.size.height
        if start < top or end > top + height:
            self.scroll_to(
                y=min(start, max(0, end - height)) if end - start < height else start, animate=False
            )

    def take_out(self, message: Message) -> None:
        if message in self._messages:
            self._messages.remove(message)
            self._draw_all(follow=True)

    def _draw_all(self, *, follow: bool) -> None:
        self._starts, self._lines = [], []
        self._draw_from(self._first, follow=follow)
        # What was drawn before may have been longer: rows below the new text are to be emptied, too.
        self.refresh()

    def _draw_from(self, index: int, *, follow: bool) -> None:
        """Draws messages `index` and later anew."""
        if not self.size.width:
            return  # not laid out yet; `on_resize` draws
        self._drawn_width = self._text_width
        if self._renderer is None:
            self._renderer = MarkdownRenderer(self._palette())
        drawn = max(0, index - self._first)
        start = self._starts[drawn] if drawn < len(self._starts) else len(self._lines)
        old = self._lines[start:]
        del self._starts[drawn:], self._lines[start:]
        for message in self._messages[self._first + drawn :] if self._messages else [self._placeholder]:
            self._starts.append(len(self._lines))
            self._lines += message.lines(self._renderer, self._text_width)
        self._show(start, old, follow)

    def _show(self, start: int, old: list[Line], follow: bool) -> None:
        new = self._lines[start:]
        same = next((n for n, line in enumerate(old) if n >= len(new) or line != new[n]), len(old))
        for line in [line for line in self._ready if line >= start + same]:
            del self._ready[line]
        size = Size(self.size.width, len(self._lines))
        if size != self.virtual_size:
            # An ordinary assignment lays out the whole screen; only the scroll bar depends on this.
            self.set_reactive(ScrollView.virtual_size, size)
        self._scroll_to_end(follow)
        self.refresh_lines(start + same, max(len(old), len(new)) - same)

    def _scroll_to_end(self, follow: bool) -> None:
        self._following = follow
        end = max(0, len(self._lines) - self.size.height)
        self.scroll_to(y=end if follow else min(self.scroll_y, end), animate=False, immediate=True)
        self._move_bar()

    def _move_bar(self) -> None:
        """Draws the scroll bar where it would look different; all of it is drawn at every change."""
        total, height = max(1, len(self._lines)), self.size.height
        looks = tuple(round(_BAR_STEPS * height * share / total) for share in (height, self.scroll_y))
        if looks != self._bar_looks:
            self._bar_looks = looks
            self.vertical_scrollbar.window_virtual_size = total
            self.vertical_scrollbar.position = self.scroll_y

    @property
    def _text_width(self) -> int:
        return max(1, self.size.width - 1)

    # Events

    def on_resize(self, _: events.Resize) -> None:
        if not self._lines:
            self._draw_all(follow=True)
        elif self._drawn_width == self._text_width:
            self._scroll_to_end(self._following)
        else:
            # A window being dragged resizes many times a second; the text is wrapped when it rests.
            self._settle.reset()
            self._settle.resume()

    def _resized(self) -> None:
        self._settle.pause()
        self._draw_all(follow=self._following)

    def on_mount(self) -> None:
        super().on_mount()  # type: ignore[no-untyped-call]
        self._settle = self.set_interval(_RESIZE_REST_S, self._resized, pause=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        if round(old_value) != round(new_value):
            self.refresh(self.size.region)
        self._move_bar()
        self._following = new_value >= self.max_scroll_y
        if new_value == 0 and old_value > 0 and self._first > 0:
            self.call_later(self._reveal)

    def _reveal(self) -> None:
        """Draws one more page of earlier messages and leaves the view where it was."""
        before = len(self._lines)
        self._first = max(0, self._first - _PAGE)
        self._draw_all(follow=False)
        self.scroll_to(y=len(self._lines) - before, animate=False, immediate=True)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        # The styles of the parts come only after this: drawn now, another theme would keep the old one's.
        if not self._restyles:
            self._restyles = self.call_later(self._restyle)

    def _restyle(self) -> None:
        self._restyles = False
        self._renderer = None
        self._ready.clear()
        if self._lines:
            self._draw_all(follow=self._following)

    def _palette(self) -> Palette:
        def style(name: str) -> Style:
            return self.get_component_rich_style(f"transcript--{name}")

        return Palette(
            text=self.rich_style,
            user=style("user"),
            bar=style("bar"),
            heading=style("heading"),
            code=style("code"),
            block=style("block"),
            quote=style("quote"),
            link=style("link"),
            meta=style("meta"),
            notice=style("notice"),
            code_theme="github-dark" if self.app.current_theme.dark else "xcode",
        )

    # Drawing

    def render_lines(self, crop: Region) -> list[Strip]:
        # The base class runs its box model over every line of every frame; there is no box here.
        top = self.scroll_offset.y
        numbers = range(top + crop.y, top + crop.bottom)
        if missing := [number for number in numbers if number not in self._ready]:
            self._draw(missing)
        strips = [self._ready[number] for number in numbers]
        if crop.x == 0 and crop.width >= self.size.width:
            return strips
        return [strip.crop(crop.x, crop.right) for strip in strips]

    def render_line(self, y: int) -> Strip:
        return self.render_lines(Region(0, y, self.size.width, 1))[0]

    def _draw(self, numbers: list[int]) -> None:
        """Each look at a style walks up the tree of widgets: once for all lines of a frame."""
        style, background, filters = self.rich_style, self.background_colors[1], self.get_line_filters()
        selection, width = self.text_selection, self.size.width
        for number in numbers:
            strip = Strip(self._lines[number] if number < len(self._lines) else [])
            if selection is not None:
                strip = _highlighted(strip, selection.get_span(number), self.screen)
            strip = strip.apply_style(style).adjust_cell_length(width, style)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            self._ready[number] = strip.apply_offsets(0, number)

    # Selection with the mouse

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract("\n".join(_text(line).rstrip() for line in self._lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:  # noqa: ARG002
        self._ready.clear()
        self.refresh()


def _text(line: Line) -> str:
    return "".join(text for text, _, _ in line)


def _highlighted(strip: Strip, span: tuple[int, int] | None, screen: Screen[object]) -> Strip:
    """`strip` with the characters of `span` marked; -1 as its end means all that follow."""
    if span is None:
        return strip
    style = screen.get_component_rich_style("screen--selection")
    start, end = span[0], span[1] if span[1] >= 0 else len(strip.text)
    segments, at = [], 0
    for text, base, _ in strip:
        low, high = (min(max(edge - at, 0), len(text)) for edge in (start, end))
        parts = ((text[:low], base), (text[low:high], (base or Style()) + style), (text[high:], base))
        segments += [Segment(part, look) for part, look in parts if part]
        at += len(text)
    return Strip(segments, strip.cell_length)
