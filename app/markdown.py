"""Turns Markdown into lines of styled cells, cheaply enough to do it while an answer streams in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.color import Color

Line = list[Segment]


@dataclass(frozen=True, slots=True)
class Palette:
    """The styles of a transcript; they come from the style sheet."""

    text: Style
    user: Style
    bar: Style
    heading: Style
    code: Style
    block: Style
    quote: Style
    link: Style
    meta: Style
    notice: Style
    code_theme: str


class _PlainHeading(Heading):
    """A heading as a bold line: panels and centring waste rows a small terminal does not have."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _PlainCode(CodeBlock):
    """Highlighted code on its own background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ground = console.get_style("markdown.code_block").bgcolor
        yield Syntax(
            str(self.text).rstrip(),
            self.lexer_name,
            theme=self.theme,
            word_wrap=True,
            padding=(0, 1),
            background_color=ground.name if ground else None,
        )


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "heading_open": _PlainHeading,
        "fence": _PlainCode,
        "code_block": _PlainCode,
    }


def _parser() -> MarkdownIt:
    # HTML, images and link definitions would make text disappear; a chat shows what the model wrote.
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    return parser.disable(["image", "reference"])


class MarkdownRenderer:
    """Renders for one palette. `width` is in cells."""

    def __init__(self, palette: Palette) -> None:
        self.palette = palette
        self._parser = _parser()
        # One document for all texts: making one costs as much as rendering a paragraph.
        self._document = _Markdown("", code_theme=palette.code_theme, hyperlinks=False)
        self._console = Console(
            theme=_theme(palette), color_system="truecolor", force_terminal=True, legacy_windows=False
        )

    def markdown(self, text: str, width: int) -> list[Line]:
        try:
            return self._render(text, width)
        except Exception:
            # Markdown from a model can be anything; a renderer that trips over it must not lose the text.
            return self.plain(text, width, self.palette.text)

    def _render(self, text: str, width: int) -> list[Line]:
        document = self._document
        document.parsed = self._parser.parse(text)
        _keep_line_breaks(document.parsed)
        options = self._console.options.update(width=width, height=None)
        lines = self._console.render_lines(document, options, style=self.palette.text, pad=False)
        return _single_spaced(lines, self.palette.text.bgcolor)

    def plain(self, text: str, width: int, style: Style) -> list[Line]:
        options = self._console.options.update(width=width, height=None, overflow="fold")
        return self._console.render_lines(Text(text, overflow="fold"), options, style=style, pad=False)

    def padded(self, line: Line, width: int) -> Line:
        """`line` of code with the margin that a finished code block has."""
        margin = Segment(" ", self.palette.block)
        return Segment.adjust_line_length([margin, *line], width, style=self.palette.block)


def _keep_line_breaks(tokens: list[Token]) -> None:
    """A single newline stays one: models write verse, addresses and lists that rely on it."""
    for token in tokens:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"


def _single_spaced(lines: list[Line], ground: Color | None) -> list[Line]:
    """No blank line at the ends, and one at most in between; blank code lines stay."""

    def is_blank(line: Line) -> bool:
        return all(
            not text.strip() and (not style or style.bgcolor in (None, ground)) for text, style, _ in line
        )

    spaced: list[Line] = []
    for line in lines:
        if not is_blank(line):
            spaced.append(line)
        elif spaced and spaced[-1]:
            spaced.append([])
    return spaced[:-1] if spaced and not spaced[-1] else spaced


def _theme(palette: Palette) -> Theme:
    headings = {f"markdown.h{level}": palette.heading for level in range(1, 7)}
    return Theme(
        {
            **headings,
            "markdown.code": palette.code,
            "markdown.code_block": palette.block,
            "markdown.block_quote": palette.quote,
            "markdown.link": palette.link,
            "markdown.link_url": palette.link,
            "markdown.item.bullet": palette.bar,
            "markdown.item.number": palette.bar,
            "markdown.hr": palette.meta,
            "markdown.table.border": palette.meta,
            "markdown.table.header": palette.heading,
        }
    )
