"""Numbers and states in words: what the status line and the foot of an answer say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app.lossy import mode_words, sign
from app.text import one_line
from engine.messages import timings_from_json
from engine.size import size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engine.events import Timings

#: How an answer ended, where that is worth a word; "eos" and "stop_string" are the normal end.
ENDS = {
    "stopped": "■ stopped",
    "max_tokens": "■ reached the token limit",
    "context": "■ the context is full: this answer ends here, F8 makes room, Ctrl+G goes on",
    "interrupted": "▲ interrupted: the program ended first, Ctrl+G goes on, Ctrl+R asks again",
    "crashed": "▲ interrupted: the engine stopped, Ctrl+G goes on, Ctrl+R asks again",
    "broken": "▲ interrupted: the connection broke, Ctrl+R asks again",
    "error": "▲ no answer, Ctrl+R asks again",
}


@dataclass(frozen=True, slots=True)
class ModeLabel:
    """A mode and what its text is worth."""

    name: str
    exact: bool

    def __str__(self) -> str:
        return f"{self.name} {sign(self.name, exact=self.exact)}"


def awaited(place: str) -> str:
    """Why there is no answer yet, when nothing else is known. `place`: where the engine is, "" for here."""
    return f"waiting for {one_line(place, 40) or 'the engine'}"


def model_name(name: str) -> str:
    return one_line(name.removesuffix(".gguf"), 24)


def speed(per_second: float) -> str:
    return f"{per_second:.0f} tok/s" if per_second >= 10 else f"{per_second:.1f} tok/s"


def acceptance(timings: Timings | None) -> str:
    """Drafted tokens accepted of those verified, – when none was."""
    share = timings.acceptance if timings else None
    return "–" if share is None else f"{100 * share:.0f}%"


def per_pass(timings: Timings | None) -> str:
    """Tokens delivered per pass of the model."""
    value = timings.tokens_per_pass if timings else None
    return "–" if value is None else f"{value:.1f}"


def hits(timings: Timings | None) -> str:
    """Experts that were in memory when they were needed, – when none was needed."""
    rate = timings.store.hit_rate if timings and timings.store else None
    return "–" if rate is None else f"{100 * rate:.0f}%"


def late(timings: Timings | None) -> str:
    """Experts that were on their way when they were needed."""
    rate = timings.store.late_rate if timings and timings.store else None
    return "–" if rate is None else f"{100 * rate:.0f}%"


def prefetch_used(timings: Timings | None) -> str:
    """Experts read ahead that were needed."""
    rate = timings.store.prefetch_used_rate if timings and timings.store else None
    return "–" if rate is None else f"{100 * rate:.0f}%"


def read_per_token(timings: Timings | None) -> str:
    value = timings.mib_per_token if timings else None
    return f"{_short(value)} MiB/tok"


def stall_per_token(timings: Timings | None) -> str:
    value = timings.stall_ms_per_token if timings else None
    return f"{_short(value)} ms/tok"


def memory(now_bytes: int, budget_bytes: int) -> str:
    return f"{size(now_bytes)}/{size(budget_bytes)}"


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def foot(end: str, mode: str, timings: Timings | None, *, exact: bool | None = None) -> str:
    """The line under an answer: how it ended if not by itself, then what it cost. `exact`: by the engine."""
    parts = [ENDS[end]] if end in ENDS else []
    if timings and timings.predicted_n:
        parts += [
            mode_words(mode, exact=exact),
            f"{timings.predicted_n} tokens",
            speed(timings.predicted_per_second),
        ]
        if timings.draft_n:
            parts += [f"acc {acceptance(timings)}", f"{per_pass(timings)}/pass"]
        if timings.store:
            parts += [f"hit {hits(timings)}", read_per_token(timings)]
    words = " · ".join(part for part in parts if part)
    return words if not words or end in ENDS else f"─ {words}"


def stored_timings(values: Mapping[str, Any]) -> Timings | None:
    """Timings as the history keeps them; fields of other versions are ignored."""
    return timings_from_json(values) if "predicted_n" in values else None
