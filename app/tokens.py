"""Single tokens for people: nothing in them is left to the terminal, and what has no shape gets one."""

from __future__ import annotations

import unicodedata

from textual.content import Content

_SIGNS = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\x7f": "␡"}


def shown(token: str, cells: int = 24) -> str:
    """`token` in at most `cells` cells; controls and marks that reorder or hide become visible signs."""
    text = "".join(map(_sign, token)) if token.strip(" ") else "␣" * len(token)
    if text and unicodedata.combining(text[0]):
        text = f"◌{text}"  # half a letter, which would sit on what stands before it
    return Content(text).truncate(cells, ellipsis=True).plain


def _sign(character: str) -> str:
    if character.isascii() and character.isprintable():
        return character
    if character in _SIGNS:
        return _SIGNS[character]
    if character < " ":
        return chr(0x2400 + ord(character))  # Unicode's pictures of control characters
    hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Me")
    selects = "\ufe00" <= character <= "\ufe0f"  # a width that terminals do not agree on
    return f"‹{ord(character):x}›" if hidden or selects else character
