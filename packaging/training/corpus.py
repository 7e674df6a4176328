"""Technical text under permissive licences that installed packages bring: what they say about themselves."""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

#: Licences, in SPDX's words; older packages say the same in their own.
_PERMITTED = frozenset(
    {"mit", "mit-0", "apache-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "0bsd", "psf-2.0", "python-2.0"}
)
_IN_WORDS = (
    (re.compile(r"mit( license)?( \(mit\))?"), "MIT"),
    (re.compile(r"(the )?(new |modified |3-clause |2-clause )?bsd( 3-clause| 2-clause)?( license)?"), "BSD"),
    (re.compile(r"apache( software)?( license)?,?( version)?( ?2(\.0)?)?"), "Apache-2.0"),
    (re.compile(r"(python software foundation license|psf( license)?|psfl)"), "PSF-2.0"),
)
_CLASSIFIER = "License :: OSI Approved :: "
_NOT_THESE = {"s2chat"}  # ourselves: this text would change with every commit
_PROSE = {".md", ".rst", ".txt"}
_NOT_PROSE = re.compile(
    r"(licen[cs]e|copying|notice|requirements|top_level|entry_points|record|authors|vendor)", re.I
)
_SHORTEST, _LONGEST, _FROM_ONE = 300, 2_000, 120_000  # characters of a piece, and of all of one package
_HELD_OUT = 8  # one package in so many


@dataclass(frozen=True, slots=True)
class Source:
    """A package that text was taken from."""

    name: str
    version: str
    licence: str
    bytes: int
    held_out: bool

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def texts(folders: Iterable[Path], characters: int) -> tuple[list[tuple[str, bool]], list[Source]]:
    """Pieces of text, each with whether it is held out, up to about `characters` of them; and their sources.

    `folders` are site-packages; Python's own library is read too.
    """
    pieces: list[tuple[str, bool]] = []
    sources: list[Source] = []
    seen: set[str] = set()
    packages = [*_packages(folders), _python()]
    each = min(_FROM_ONE, max(characters // max(1, len(packages)) * 2, 4 * _LONGEST))
    for name, version, licence, described, files in packages:
        if name in seen:
            continue
        seen.add(name)
        held_out = hashlib.sha256(name.encode()).digest()[0] % _HELD_OUT == 0
        found = list(_fresh(_pieces(described, files), min(each, characters), seen))
        characters -= sum(len(text) for text in found)
        pieces += [(text, held_out) for text in found]
        if found:
            size = sum(len(text.encode()) for text in found)
            sources.append(Source(name, version, licence, size, held_out))
    return pieces, sources


def licence_of(metadata: Message) -> str | None:
    """The licence that a package's metadata names, if all of it is permissive."""
    expression = metadata.get("License-Expression", "")
    if expression:
        parts = [part for part in re.split(r"[\s()]+|\bAND\b|\bOR\b", expression) if part]
        return expression if all(part.lower() in _PERMITTED for part in parts) else None
    named = [
        value.removeprefix(_CLASSIFIER)
        for value in metadata.get_all("Classifier", [])
        if _CLASSIFIER in value
    ]
    found = [_in_words(value) for value in named or [metadata.get("License", "")]]
    return " AND ".join(sorted({part for part in found if part})) if found and all(found) else None


def _in_words(text: str) -> str | None:
    text = text.strip().lower()
    if text in _PERMITTED:
        return text.upper()
    return next((short for pattern, short in _IN_WORDS if pattern.fullmatch(text)), None)


def _packages(folders: Iterable[Path]) -> Iterator[tuple[str, str, str, str, list[Path]]]:
    """Name, version, licence, description and files of each package that may be used."""
    for folder in folders:
        for info in sorted(folder.glob("*.dist-info")):
            metadata = HeaderParser().parsestr((info / "METADATA").read_text("utf-8", "replace"))
            licence, record = licence_of(metadata), info / "RECORD"
            if licence is None or not record.is_file() or metadata["Name"] in _NOT_THESE:
                continue
            names = (line.split(",")[0] for line in record.read_text("utf-8", "replace").splitlines())
            files = [folder / name for name in names if ".." not in name and "vendor" not in name]
            described = metadata.get_payload()
            yield (
                metadata["Name"].lower(), metadata["Version"], licence,
                described if isinstance(described, str) else "", files,
            )  # fmt: skip


def _python() -> tuple[str, str, str, str, list[Path]]:
    library = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "test", "tests", "lib2to3", "idlelib", "ensurepip"}
    files = [path for path in sorted(library.rglob("*.py")) if not left_out & set(path.parts)]
    return "python", sys.version.split()[0], "PSF-2.0", "", files


def _pieces(described: str, files: Iterable[Path]) -> Iterator[str]:
    yield from _cut(described)
    for path in files:
        if path.suffix in _PROSE and not _NOT_PROSE.search(path.name):
            yield from _cut(_read(path))
        elif path.suffix == ".py" and "test" not in path.name:
            yield from _docstrings(_read(path))


def _fresh(pieces: Iterable[str], characters: int, seen: set[str]) -> Iterator[str]:
    """Those that did not come before, up to `characters`."""
    left = characters
    for piece in pieces:
        key = piece[:200]
        if key in seen or not len(piece) >= _SHORTEST or left <= 0:
            continue
        seen.add(key)
        left -= len(piece)
        yield piece


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8") if path.stat().st_size < 2_000_000 else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _docstrings(source: str) -> Iterator[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _cut(ast.get_docstring(node) or "")


def _cut(text: str) -> Iterator[str]:
    """Pieces that end where a paragraph does."""
    piece = ""
    for paragraph in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        if piece and len(piece) + len(paragraph) > _LONGEST:
            yield piece
            piece = ""
        piece = f"{piece}\n\n{paragraph}" if piece else paragraph[:_LONGEST]
    yield piece
