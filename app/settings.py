"""The settings file: what a person set for every start; changed without losing comments."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.setting import SETTINGS, Setting
from engine.errors import BadRequest, S2Error
from engine.paths import private_dir

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

_SECTION = re.compile(r"\s*\[\s*([A-Za-z0-9_.-]+)\s*\]")
_PAIR = re.compile(r"\s*(?P<off>#\s?)?(?P<key>[A-Za-z0-9_.-]+)\s*=")
_LARGEST = 1 << 20  # bytes; a settings file is a page


@dataclass(frozen=True, slots=True)
class Settings:
    """`values` by key, checked. `warnings` are for the user. `path` None: nothing can be kept."""

    path: Path | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def get(self, key: str) -> Any:
        return self.values.get(key)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where models are looked for beside the usual places."""
        folders: tuple[Path, ...] = self.get("models.folders") or ()
        return folders

    @property
    def downloads(self) -> Path | None:
        """Where downloaded models go, None for the usual place."""
        place: Path | None = self.get("models.downloads")
        return place

    def fill(self, arguments: Namespace) -> None:
        """Sets what the command line left open."""
        for setting in SETTINGS:
            value = self.values.get(setting.key)
            if setting.field and value is not None and getattr(arguments, setting.field, "") is None:
                setattr(arguments, setting.field, value)


def read_settings(path: Path | None) -> Settings:
    """What the file at `path` says; a missing one says nothing.

    Raises BadRequest that names each line and key which cannot be used.
    """
    text = "" if path is None else _text(path)
    if not text.strip():
        return Settings(path)
    known = {setting.key: setting for setting in SETTINGS}
    values: dict[str, Any] = {}
    warnings, wrong = [], []
    for key, value in _flat(_parsed(text, str(path)).unwrap()):
        place = f"{path}, line {_line_of(text, key)}: {key}"
        if key not in known:
            warnings.append(f"{place} is no setting of this version, it is ignored")
            continue
        try:
            checked = known[key].check(value)
        except BadRequest as error:
            wrong.append(f"{place}: {error.line()}")
            continue
        if checked is not None:
            values[key] = checked
    if wrong:
        raise BadRequest("\n".join(wrong), hint="mend the file, or remove the line")
    return Settings(path, values, tuple(warnings))


def change(settings: Settings, key: str, value: Any) -> Settings:
    """The settings with `key` set to `value`, None for its default; the file is written at once.

    Raises BadRequest for a value that cannot be, S2Error when the file cannot be read or written.
    """
    setting = next(setting for setting in SETTINGS if setting.key == key)
    if value is not None:
        setting.check(value)
    if settings.path is None:
        raise S2Error("there is no place for settings here")
    text = _text(settings.path) or template()
    read = _parsed(text, str(settings.path))  # a file that cannot be read is not written over
    text = _cleared(text, read, setting) if value is None else _changed(text, read, setting, value)
    _write(settings.path, text)
    return read_settings(settings.path)


def template() -> str:
    """A file with every setting in it, each as a comment with its default."""
    lines = [
        "# Settings of s2chat. A line without # before it counts; the rest is as the program thinks best."
    ]
    section = ""
    for setting in SETTINGS:
        if setting.section != section:
            section = setting.section
            lines += ["", f"[{section}]"]
        lines += [
            "",
            f"# {setting.help[0].upper()}{setting.help[1:]}.",
            f"# {setting.name} = {setting.example}",
        ]
    return "\n".join(lines) + "\n"


# Reading


def _text(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise BadRequest(f"{path}: {error.strerror}", hint="check that you may read it") from error
    if len(data) > _LARGEST:
        raise BadRequest(f"{path}: too large for settings")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadRequest(f"{path}, line {line}: not UTF-8", hint="save the file as UTF-8") from error


def _parsed(text: str, path: str) -> TOMLDocument:
    import tomlkit  # takes 40 ms, which only those pay who have settings
    from tomlkit.exceptions import ParseError, TOMLKitError

    try:
        return tomlkit.parse(text)
    except ParseError as error:
        what = str(error).partition(" at line")[0]
        raise BadRequest(
            f"{path}, line {error.line}: {what}", hint="mend the file, or remove the line"
        ) from None
    except TOMLKitError as error:  # a key that is there twice, for example
        raise BadRequest(f"{path}: {error}", hint="mend the file, or remove the line") from None


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs = []
    for key, value in table.items():
        if isinstance(value, Mapping) and not prefix:
            pairs += _flat(value, f"{key}.")
        else:
            pairs.append((prefix + str(key), value))
    return pairs


def _line_of(text: str, key: str, *, off: bool = False) -> int:
    """The number of the line that sets `key`, or that would without its #; 0 when there is none."""
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _SECTION.match(line):
            section = found[1] + "."
        elif (pair := _PAIR.match(line)) and section + pair["key"] == key and bool(pair["off"]) == off:
            return number
    return 0


# Writing


def _changed(text: str, read: TOMLDocument, setting: Setting, value: Any) -> str:
    """In the place of the old value, or of the line that shows the default."""
    import tomlkit

    line = f"{setting.name} = {tomlkit.item(value).as_string()}"
    section: Any = read.get(setting.section) if setting.section else read
    if section is not None and setting.name in section:
        section[setting.name] = value
        return read.as_string()
    lines = text.splitlines()
    if number := _line_of(text, setting.key, off=True):
        lines[number - 1] = line
    elif not setting.section:
        read[setting.name] = value
        return read.as_string()
    else:
        number = _section_line(lines, setting.section)
        if not number:
            lines += ["", f"[{setting.section}]"]
        lines.insert(number or len(lines), line)
    return "\n".join(lines) + "\n"


def _section_line(lines: Sequence[str], section: str) -> int:
    heads = ((number, _SECTION.match(line)) for number, line in enumerate(lines, 1))
    return next((number for number, head in heads if head and head[1] == section), 0)


def _cleared(text: str, read: TOMLDocument, setting: Setting) -> str:
    section: Any = read.get(setting.section) if setting.section else read
    if section is None or setting.name not in section:
        return text
    number = _line_of(text, setting.key)
    lines = text.splitlines()
    if number and "\n" not in section[setting.name].as_string():
        lines[number - 1] = f"# {setting.name} = {setting.example}"
        return "\n".join(lines) + "\n"
    section.remove(setting.name)
    return read.as_string()


def _write(path: Path, text: str) -> None:
    """As a whole or not at all; through a link, because people keep such files elsewhere."""
    try:
        path = path.resolve()
        if not path.parent.exists():
            private_dir(path.parent)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            fresh.write_text(text, encoding="utf-8")
            if path.exists():
                fresh.chmod(path.stat().st_mode & 0o777)
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise S2Error(f"the settings were not saved: {error.strerror} ({path})") from error
