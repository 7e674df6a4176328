"""Gets text out of the interface: to the terminal's clipboard, and to a file where that is out of reach."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.paths import private_dir

if TYPE_CHECKING:
    from pathlib import Path

# Terminals cut or drop longer clipboard sequences; the file has the text whole.
_CLIPBOARD_BYTES = 74_000


def copy_out(clipboard: Callable[[str], None], text: str, path: Path) -> str:
    """Copies `text` both ways and says where it is now."""
    fits = len(text.encode()) <= _CLIPBOARD_BYTES
    if fits:
        clipboard(text)
    try:
        private_dir(path.parent)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        return f"Copied to the clipboard only: {error}" if fits else f"Not copied: {error}"
    return f"Copied, and saved as {path}" if fits else f"Too long for the clipboard, saved as {path}"
