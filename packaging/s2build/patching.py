"""Applies unified diffs exactly: every context line must match where the patch says it stands.

No fuzz and no offsets: the source is pinned by hash, so a patch that does not fit is wrong, not stale. Needs
neither `patch` nor `git`, which exits 0 and does nothing inside an ignored folder of another repository.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from s2build.problem import SetupError

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline at end of file"


@dataclass(frozen=True)
class Hunk:
    """Lines to be found at `start` (0-based, in the old file) and what takes their place."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


@dataclass(frozen=True)
class FilePatch:
    """All hunks for one file; `created` when the patch brings the file itself."""

    path: str
    created: bool
    hunks: tuple[Hunk, ...]


def parse_patch(text: str) -> tuple[FilePatch, ...]:
    """The changes a unified diff makes, file by file. Raises ValueError when it has none or is broken."""
    lines = text.splitlines(keepends=True)
    patches: list[FilePatch] = []
    at = 0
    while at < len(lines):
        if not (lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")):
            at += 1
            continue
        created = lines[at][4:].split()[0] == "/dev/null"
        path = lines[at + 1][4:].split()[0].partition("/")[2]
        hunks, at = _parse_hunks(lines, at + 2)
        if not path or not hunks:
            raise ValueError(f"a change of {path or 'no file'} without a hunk")
        patches.append(FilePatch(path, created, hunks))
    if not patches:
        raise ValueError("it changes no file")
    return tuple(patches)


def _parse_hunks(lines: list[str], at: int) -> tuple[tuple[Hunk, ...], int]:
    hunks: list[Hunk] = []
    while at < len(lines) and (head := _HUNK.match(lines[at])):
        start, n_old, _, n_new = (1 if part is None else int(part) for part in head.groups())
        at += 1
        old: list[str] = []
        new: list[str] = []
        while len(old) < n_old or len(new) < n_new:
            if at == len(lines):
                raise ValueError("a hunk ends early")
            _take_line(lines[at], old, new)
            at += 1
        if at < len(lines) and lines[at].startswith(_NO_NEWLINE):
            _take_line(lines[at], old, new)
            at += 1
        hunks.append(Hunk(max(start - 1, 0), tuple(old), tuple(new)))
    return tuple(hunks), at


def _take_line(line: str, old: list[str], new: list[str]) -> None:
    kind, body = line[:1], line[1:]
    if kind == "-":
        old.append(body)
    elif kind == "+":
        new.append(body)
    elif kind in (" ", "\n"):  # some tools strip the blank of an empty context line
        old.append(body or "\n")
        new.append(body or "\n")
    elif line.startswith(_NO_NEWLINE):
        for side in (old, new):
            if side:
                side[-1] = side[-1].rstrip("\n")
    else:
        raise ValueError(f"unexpected line {line.rstrip()!r}")


def apply_file_patch(patch: FilePatch, text: str) -> str:
    """`text` with the patch applied. Raises ValueError naming the first line that does not fit."""
    lines = text.splitlines(keepends=True)
    result: list[str] = []
    done = 0
    for hunk in patch.hunks:
        end = hunk.start + len(hunk.old)
        if tuple(lines[hunk.start : end]) != hunk.old or hunk.start < done:
            raise ValueError(f"{patch.path}:{hunk.start + 1} is not what the patch expects")
        result += lines[done : hunk.start]
        result += hunk.new
        done = end
    return "".join(result + lines[done:])


def apply_patch(patch_file: Path, root: Path) -> None:
    """Applies one patch file below `root`. Raises SetupError unless every file it names has changed."""
    try:
        for patch in parse_patch(patch_file.read_text()):
            _change(patch, root / patch.path)
    except (OSError, ValueError) as error:
        raise SetupError(f"{patch_file.name} does not apply: {error}") from error


def _change(patch: FilePatch, target: Path) -> None:
    before = "" if patch.created else target.read_text()
    if patch.created and target.exists():
        raise ValueError(f"{patch.path} exists already")
    after = apply_file_patch(patch, before)
    if after == before:
        raise ValueError(f"{patch.path} would not change")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(after)
