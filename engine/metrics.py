"""Counts since the engine started, for Prometheus. Where llama-server has a figure, its name is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.memory import rss_bytes

if TYPE_CHECKING:
    from engine.events import Timings
    from engine.state import EngineState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(slots=True)
class Totals:
    """Sums over requests that are over; times in milliseconds."""

    requests: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    cache_n: int = 0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0
    passes: int = 0
    context_most: int = 0
    bytes_read: int = 0

    def add(self, timings: Timings | None) -> None:
        self.requests += 1
        if timings is None:
            return
        self.prompt_n += timings.prompt_n
        self.prompt_ms += timings.prompt_ms
        self.cache_n += timings.cache_n
        self.predicted_n += timings.predicted_n
        self.predicted_ms += timings.predicted_ms
        self.draft_n += timings.draft_n
        self.draft_n_accepted += timings.draft_n_accepted
        self.passes += timings.verify_n
        self.context_most = max(self.context_most, timings.context_n)
        self.bytes_read += timings.store.bytes_read if timings.store else 0


def metrics_text(state: EngineState) -> str:
    """Everything in Prometheus' text format."""
    totals, running = state.totals, sum(job.started for job in state.jobs.values())
    rows: list[tuple[str, str, float, str]] = [
        ("llamacpp:prompt_tokens_total", "counter", totals.prompt_n, "Prompt tokens decoded."),
        ("llamacpp:prompt_seconds_total", "counter", totals.prompt_ms / 1e3, "Time spent on prompts."),
        ("llamacpp:tokens_predicted_total", "counter", totals.predicted_n, "Tokens delivered."),
        ("llamacpp:tokens_predicted_seconds_total", "counter", totals.predicted_ms / 1e3, "Decode time."),
        ("llamacpp:n_decode_total", "counter", totals.passes, "Verify passes, plain decode included."),
        ("llamacpp:n_tokens_max", "counter", totals.context_most, "Most tokens seen in the context."),
        (
            "llamacpp:prompt_tokens_seconds",
            "gauge",
            _rate(totals.prompt_n, totals.prompt_ms),
            "Prompt tokens/s.",
        ),
        (
            "llamacpp:predicted_tokens_seconds",
            "gauge",
            _rate(totals.predicted_n, totals.predicted_ms),
            "Delivered tokens/s.",
        ),
        ("llamacpp:requests_processing", "gauge", running, "Requests being answered."),
        ("llamacpp:requests_deferred", "gauge", len(state.jobs) - running, "Requests that wait."),
        ("s2chat:requests_total", "counter", totals.requests, "Requests that are over, however they ended."),
        ("s2chat:prompt_tokens_cached_total", "counter", totals.cache_n, "Prompt tokens found in the cache."),
        ("s2chat:draft_tokens_total", "counter", totals.draft_n, "Drafted tokens verified."),
        (
            "s2chat:draft_tokens_accepted_total",
            "counter",
            totals.draft_n_accepted,
            "Drafted tokens accepted.",
        ),
        ("s2chat:expert_bytes_read_total", "counter", totals.bytes_read, "Bytes of experts read from disk."),
        ("s2chat:resident_bytes", "gauge", rss_bytes(), "Memory of the engine process."),
        ("s2chat:kept_bytes", "gauge", state.worker.kept_bytes, "Of it, conversations put aside."),
        ("s2chat:budget_bytes", "gauge", state.budget_bytes, "Its budget, 0 for no limit."),
    ]
    return "".join(
        f"# HELP {name} {words}\n# TYPE {name} {kind}\n{name} {value:.17g}\n"
        for name, kind, value, words in rows
    )


def _rate(count: int, milliseconds: float) -> float:
    return 1e3 * count / milliseconds if milliseconds else 0.0
