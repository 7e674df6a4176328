"""How the next answers are drawn: the settings the engine honours, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from engine.errors import BadRequest
from engine.request import EFFORTS, Sampling

if TYPE_CHECKING:
    from engine.messages import ModelCard

_EFFORT = "reasoning_effort"


@dataclass(frozen=True, slots=True)
class Setting:
    """`name` as in a request; `default` None where there is none; `words` say what it does.

    `levels`: names for the values 1, 2 and so on.
    """

    name: str
    words: str
    whole: bool = False
    default: float | None = None
    levels: tuple[str, ...] = ()

    def show(self, value: float | None) -> str:
        if value is None or not self.levels:
            return show(value)
        return self.levels[int(value) - 1]


_DEFAULTS = {field.name: field.default for field in fields(Sampling)}


def _row(name: str, words: str) -> Setting:
    default = _DEFAULTS[name]
    number = default if isinstance(default, (int, float)) else None
    return Setting(name, words, whole=isinstance(default, int) or default is None, default=number)


SETTINGS = (
    _row("temperature", "0 is the likeliest token"),
    _row("top_k", "of the K likeliest, 0 all"),
    _row("top_p", "of those that sum to P"),
    _row("min_p", "none below P × likeliest"),
    _row("repeat_penalty", "1 is none"),
    _row("repeat_last_n", "tokens it looks back at"),
    _row("presence_penalty", "0 is none"),
    _row("frequency_penalty", "0 is none"),
    _row("seed", "the same draws each time"),
    Setting("max_tokens", "longest answer", whole=True),
    Setting("thinking", "1 or 0, if it can switch", whole=True),
    Setting("reasoning_effort", "low, medium or high, if it asks", whole=True, levels=EFFORTS),
)


def setting(name: str) -> Setting:
    """The setting that `name` names or begins. Raises BadRequest for any other."""
    wanted = name.lower().replace("-", "_")
    wanted = {"temp": "temperature", "n": "max_tokens", "think": "thinking", "effort": _EFFORT}.get(
        wanted, wanted
    )
    found = [row for row in SETTINGS if row.name == wanted] or [
        row for row in SETTINGS if row.name.startswith(wanted)
    ]
    if len(found) != 1 or not wanted:
        raise BadRequest(
            f"there is no setting {name!r}", hint="one of " + ", ".join(row.name for row in SETTINGS)
        )
    return found[0]


def parse(row: Setting, word: str) -> float:
    """The value `word` has for `row`. Raises BadRequest with the range when the engine would refuse it."""
    if row.levels:
        if word not in row.levels:
            raise BadRequest(f"{row.name} is {word!r}", hint="one of " + ", ".join(row.levels))
        return row.levels.index(word) + 1
    try:
        value: float = int(word) if row.whole else float(word)
    except ValueError:
        raise BadRequest(
            f"{row.name} is {word!r}", hint="a whole number" if row.whole else "a number"
        ) from None
    if row.name == "max_tokens":
        if value < 1:
            raise BadRequest(f"max_tokens is {word}", hint="1 or more")
    elif row.name == "thinking":
        if value not in (0, 1):
            raise BadRequest(f"thinking is {word}", hint="1 or 0")
    else:
        Sampling(**{row.name: value})  # type: ignore[arg-type]
    return value


def request_fields(changed: Mapping[str, float], model: ModelCard | None = None) -> dict[str, Any]:
    """What a chat changed, as fields of a request.

    Settings of another version are left out, and those that `model` has no switch for: another one had.
    """
    names = {row.name for row in SETTINGS}
    asked: dict[str, Any] = {name: value for name, value in changed.items() if name in names}
    effort, thinking = asked.pop(_EFFORT, None), asked.pop("thinking", None)
    if effort is not None and (model is None or model.can_set_effort):
        asked[_EFFORT] = setting(_EFFORT).show(effort)
    if model is not None and not model.can_switch_thoughts:
        thinking = None
    return (
        asked if thinking is None else {**asked, "chat_template_kwargs": {"enable_thinking": bool(thinking)}}
    )


def show(value: float | None) -> str:
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
