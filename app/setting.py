"""The settings there are: what each may be, what it means and when it counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.budget import parse_budget
from engine.errors import BadRequest
from engine.plan import CONTEXT_MAX, CONTEXT_MIN
from engine.remote.address import parse_address
from engine.request import CACHE_TYPES, MODES, Sampling


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the file. `field` is the command line's name for it, "" where it has none.

    `check` returns the value as the program uses it, and raises BadRequest that says what it may be.
    `example` is what it is without a setting, in TOML; `means` says that where the value itself does not.
    `choices` are all values, where they are few.
    """

    key: str
    field: str
    check: Callable[[Any], Any]
    example: str
    help: str
    when: str
    choices: tuple[str, ...] = ()
    means: str = ""

    @property
    def default(self) -> str:
        """What it is without a setting, in words."""
        return self.means or self.example.strip('"')

    @property
    def section(self) -> str:
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]


def parse_words(setting: Setting, words: str) -> Any:
    """The value a person typed, as TOML has it; None for nothing. Raises BadRequest."""
    words = words.strip()
    if not words:
        return None
    if setting.example.startswith("["):
        return [part.strip() for part in words.split(",") if part.strip()]
    if setting.example.startswith('"'):
        return words
    try:
        return int(words)
    except ValueError:
        pass
    try:
        return float(words)
    except ValueError:
        raise BadRequest(f"{words!r} is no number") from None


def words_of(value: Any) -> str:
    """A value as `parse_words` reads it."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _text_value(value: Any) -> str:
    if not isinstance(value, str) or "\n" in value:
        raise BadRequest(f"{value!r} is no text", hint='write "…"')
    return value


def _one_of(choices: Sequence[str]) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        if value not in choices:
            raise BadRequest(
                f"{value!r} is unknown", hint="one of " + ", ".join(choice or '""' for choice in choices)
            )
        return str(value) or None

    return check


def _budget(value: Any) -> int | str | None:
    return None if value == "auto" else parse_budget(value).wire


def _whole(low: int, high: int, unset: int) -> Callable[[Any], int | None]:
    def check(value: Any) -> int | None:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or (value != unset and not low <= value <= high)
        ):
            raise BadRequest(
                f"{value!r} does not do", hint=f"a whole number from {low} to {high}, or {unset}"
            )
        return None if value == unset else value

    return check


def _sampling(name: str) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        Sampling(**{name: value})
        return value

    return check


def _place(value: Any) -> Path | None:
    place = Path(_text_value(value)).expanduser()
    if value and not place.is_absolute():
        raise BadRequest(f"{value!r} is no full path", hint="begin with / or ~")
    return place if value else None


def _folders(value: Any) -> tuple[Path, ...] | None:
    if not isinstance(value, (list, tuple)):
        raise BadRequest(f"{value!r} is no list", hint='write ["/one/folder", "/another"]')
    return tuple(place for item in value if (place := _place(item))) or None


def _server(value: Any) -> str | None:
    return parse_address(_text_value(value)).root if value else None


THEMES = {"dark": "textual-dark", "light": "textual-light", "ansi": "ansi-dark"}
_NOW, _NEXT, _START = "at once", "from the next answer", "from the next start"

SETTINGS = (
    Setting(
        "theme",
        "",
        _text_value,
        '"dark"',
        "colours: dark, light, ansi (the terminal's own), or the name of a theme of Ctrl+P, Colours",
        _NOW,
        tuple(THEMES),
    ),
    Setting(
        "mode",
        "mode",
        _one_of(("", *MODES)),
        '""',
        "how to decode at the start: " + ", ".join(MODES) + '; "" for the last one used',
        _NEXT,
        ("", *MODES),
        means="the last one used",
    ),
    Setting(
        "engine.budget",
        "budget",
        _budget,
        '"auto"',
        'memory for the whole engine: "3G", "25%" of the model\'s files, "max", or "auto"',
        _NOW,
    ),
    Setting(
        "engine.context",
        "n_ctx",
        _whole(CONTEXT_MIN, CONTEXT_MAX, 0),
        "0",
        "context size in tokens, 0 for what suits the machine",
        _START,
        means="by the plan",
    ),
    Setting(
        "engine.cache_type",
        "cache_type",
        _one_of(tuple(CACHE_TYPES)),
        '"f16"',
        "type of the KV cache: f16, or q8_0 for nearly half its memory",
        _START,
        tuple(CACHE_TYPES),
    ),
    Setting(
        "sampling.temperature",
        "temperature",
        _sampling("temperature"),
        "0.8",
        "0 for the likeliest token, more for more variety",
        _NEXT,
    ),
    Setting(
        "sampling.top_k",
        "top_k",
        _sampling("top_k"),
        "40",
        "sample from the K likeliest tokens, 0 for all",
        _NEXT,
    ),
    Setting(
        "sampling.top_p",
        "top_p",
        _sampling("top_p"),
        "0.95",
        "sample from the likeliest tokens that sum to P",
        _NEXT,
    ),
    Setting(
        "sampling.min_p",
        "min_p",
        _sampling("min_p"),
        "0.05",
        "drop tokens less likely than P times the likeliest",
        _NEXT,
    ),
    Setting(
        "sampling.repeat_penalty",
        "repeat_penalty",
        _sampling("repeat_penalty"),
        "1.0",
        "penalty for repeated tokens, 1 for none",
        _NEXT,
    ),
    Setting(
        "sampling.max_tokens",
        "max_tokens",
        _whole(1, 1 << 30, -1),
        "-1",
        "longest answer in tokens, -1 for no limit",
        _NEXT,
        means="no limit",
    ),
    Setting(
        "models.start",
        "model",
        _place,
        '""',
        'the model file to start with; "" for the one that ships',
        _START,
        means="the one that ships",
    ),
    Setting("models.folders", "", _folders, "[]", "more folders to look for models in", _NOW, means="none"),
    Setting(
        "models.downloads",
        "",
        _place,
        '""',
        'the folder for downloads; "" for the usual one',
        _NOW,
        means="the usual one",
    ),
    Setting(
        "server.url",
        "",
        _server,
        '""',
        'a server elsewhere that answers, as "https://host.example/v1"; "" for this machine',
        _START,
        means="this machine",
    ),
    Setting(
        "server.key_file",
        "",
        _place,
        '""',
        'the file that holds its key; "" for OPENAI_API_KEY, or none',
        _START,
        means="OPENAI_API_KEY, or none",
    ),
    Setting(
        "server.model",
        "",
        lambda value: _text_value(value) or None,
        '""',
        'which of its models; "" for its first',
        _START,
        means="its first",
    ),
)
