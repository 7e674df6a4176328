"""What can be changed in the machine panel: its value, when a change counts, what it does to the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.choice import LineScreen
from app.lossy import EXACT, sign
from app.sheet import Row, labelled
from engine.errors import S2Error
from engine.request import MAX_DRAFT_LENGTH, is_lossy
from engine.size import size

if TYPE_CHECKING:
    from collections.abc import Callable

    from app.chat import ChatApp
    from app.sheet import Look
    from engine.messages import ModelCard, PlanCard, Snapshot

_NEXT, _LOSSY, _NOW = "next answer", "in lossy modes", "at once"
_BUDGET = "3G, 25% of the model's files, or max for no limit"
_DRAFTS = {"draft_experts": "draft experts", "draft_length": "draft length", "cap": "reuse cap"}
_READS = {
    "resident_only": ("resident only", "drafts choose among the experts in memory and wait for no read"),
    "prefetch": ("prefetch", "experts are read before they are asked for"),
}


class Switches:
    """`said` is told what came of a change."""

    def __init__(self, app: ChatApp, said: Callable[[str], None]) -> None:
        self._app, self._said = app, said

    def rows(self) -> list[Row]:
        snapshot = self._app.board.snapshot
        if snapshot is None or snapshot.model is None:
            return [Row("mode", (("n/a: no model is loaded yet", "faint"),))]
        reasons = snapshot.plan.reasons if snapshot.plan else {}
        return [
            self._mode(),
            *(self._drafts(name, snapshot, reasons.get(name, "")) for name in _DRAFTS),
            *(self._reads(name, snapshot.plan) for name in _READS),
            self._budget(snapshot, snapshot.plan),
        ]

    def _mode(self) -> Row:
        words = self._app.board.set_mode(self._app.mode).partition(": ")[2]
        label = self._app.board.mode
        return _row(
            "mode", "mode", str(label or ""), _NEXT, f"{words}. Counts from the next answer; F2 as well."
        )

    def _drafts(self, name: str, snapshot: Snapshot, reason: str) -> Row:
        model, label = snapshot.model, _DRAFTS[name]
        if model is None or not model.is_moe:
            return Row(name, (labelled(label), ("n/a: a dense model", "faint")))
        mode = self._app.board.mode
        of = {"draft_experts": f" of {model.n_expert_used}", "cap": f" of {model.n_expert}"}.get(name, "")
        value = f"{self._value(name)}{of}"
        if name == "cap":
            why = f"{reason}. Counts from the next answer, in lossy modes alone; there it changes the text."
            if mode is None or not is_lossy(mode.name):
                return _row(name, label, value, _LOSSY, why, look="faint")
            return _row(name, label, f"{value} ≈lossy", _NEXT, why)
        exact = mode is None or mode.exact
        text = "changes the speed, never the text" if exact else "may change the text"
        why = f"{reason}. Counts from the next answer, in modes that draft by themselves; {text}."
        word = EXACT if mode is None else sign(mode.name, exact=mode.exact)
        return _row(name, label, f"{value} {word}", _NEXT, why)

    def _reads(self, name: str, plan: PlanCard | None) -> Row:
        label, what = _READS[name]
        if _is_held_whole(plan):
            return Row(name, (labelled(label), ("n/a: this model is held whole", "faint")))
        value = "on" if self._value(name) else "off"
        why = f"{what}. Counts from the next answer; changes the speed, never the text."
        return _row(name, label, f"{value} {EXACT}", _NEXT, why)

    def _budget(self, snapshot: Snapshot, plan: PlanCard | None) -> Row:
        value = size(snapshot.budget_bytes) if snapshot.budget_bytes else "no limit"
        reason = plan.reasons.get("budget_bytes", "") if plan else ""
        if _is_held_whole(plan):
            why = (
                f"{reason}. This model is held whole: a budget counts when it is loaded anew (--budget, F10)."
            )
            return _row("budget", "budget", f"{value} =exact", "needs a reload", why, switch=False)
        why = (
            f"{reason}. Enter asks for another; it counts at once, also while an answer is written, and never"
        )
        return _row("budget", "budget", f"{value} =exact", _NOW, f"{why} changes the text. F10 keeps one.")

    def _value(self, name: str) -> int:
        """What the next request says, or else what the engine takes; 1 and 0 for on and off."""
        snapshot = self._app.board.snapshot
        given = self._app.options.request.get(name)
        return int(given if given is not None else getattr(snapshot.settings, name) if snapshot else 0)

    # Turning

    async def turn(self, name: str, step: int) -> None:
        """One step further, 0 to be asked for the value."""
        try:
            if name == "mode":
                await self._app.tuning.mode_step(step or 1)
            elif name == "budget":
                await self._ask_budget()
            elif name in _READS:
                await self._app.tuning.drafts(name, not self._value(name))
                self._said("")
            else:
                await self._turn_drafts(name, step)
        except S2Error as error:
            self._said(error.line())

    async def _turn_drafts(self, name: str, step: int) -> None:
        snapshot = self._app.board.snapshot
        model = snapshot.model if snapshot else None
        if model is None:
            return
        low, high = _range(name, model)
        value = self._value(name) + step
        if not step or not low <= value <= high:
            self._said(f"← → choose from {low} to {high}")
            return
        await self._app.tuning.drafts(name, value)
        self._said("")

    async def _ask_budget(self) -> None:
        async def typed(text: str | None) -> None:
            if text is not None and text.strip():
                try:
                    self._said(await self._app.tuning.budget(text.strip()))
                except S2Error as error:
                    self._said(error.line())

        said = f"{self._app.board.memory_words}. {_BUDGET}"
        await self._app.push_screen(LineScreen("Memory for the engine, at once", said=said), typed)


def _is_held_whole(plan: PlanCard | None) -> bool:
    """Whether no expert is read while it answers."""
    return plan is None or not plan.store


def _range(name: str, model: ModelCard) -> tuple[int, int]:
    """From where to where `name` may be turned."""
    used, whole = model.n_expert_used, model.n_expert
    ranges = {"draft_experts": (1, used), "draft_length": (0, MAX_DRAFT_LENGTH), "cap": (used, whole)}
    return ranges[name]


def _row(
    name: str, label: str, value: str, when: str, why: str, *, switch: bool = True, look: Look = "value"
) -> Row:
    arrows = ("‹ ", " ›") if switch else ("  ", "  ")
    return Row(
        name,
        (
            labelled(label),
            (f"{arrows[0]}{value}{arrows[1]}".ljust(20), look),
            (f" {when}", "faint"),
        ),
        why,
        switch=switch,
    )
