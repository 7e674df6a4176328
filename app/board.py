"""Turns what is known about the engine and the running answer into the status line's words and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.labels import ModeLabel, awaited, memory, model_name
from app.statusline import Status
from app.text import one_line
from engine.size import size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.answer import Answer
    from app.entry import Entry
    from app.meter import Meter
    from engine.messages import ModeCard, Snapshot


@dataclass(slots=True)
class Board:
    """`words` are those of the link while no engine is connected, `problem` when it needs the user.

    `mode`: what the next answer is written in. `place`: where the engine is, "" for this machine.
    """

    snapshot: Snapshot | None = None
    words: str = "starting the engine"
    problem: bool = False
    mode: ModeLabel | None = None
    place: str = ""

    @property
    def model(self) -> str:
        """The model that answers, "" while it is not known."""
        return self.snapshot.model.name if self.snapshot and self.snapshot.model else ""

    @property
    def context_size(self) -> int:
        return self.snapshot.model.n_ctx if self.snapshot and self.snapshot.model else 0

    @property
    def is_ready(self) -> bool:
        return self.snapshot is not None and self.snapshot.state == "ready"

    @property
    def can_switch_thoughts(self) -> bool:
        """Whether requests may say if the model thinks first."""
        model = self.snapshot.model if self.snapshot else None
        return model is not None and model.can_switch_thoughts

    @property
    def can_set_effort(self) -> bool:
        """Whether requests may say how much the model thinks."""
        model = self.snapshot.model if self.snapshot else None
        return model is not None and model.can_set_effort

    @property
    def advised(self) -> Mapping[str, float]:
        """Sampling settings that the model advises, by their names in a request."""
        model = self.snapshot.model if self.snapshot else None
        return {} if model is None else model.sampling

    @property
    def memory_words(self) -> str:
        """What the engine takes and may take."""
        if self.snapshot is None:
            return self.words
        now, peak, budget = self.snapshot.rss_bytes, self.snapshot.peak_bytes, self.snapshot.budget_bytes
        limit = f" of a budget of {size(budget)}" if budget else ", without a limit"
        return f"the engine takes {size(now)}{limit}, {size(peak)} at most so far"

    def lost(self, words: str, *, problem: bool) -> None:
        """No engine is connected."""
        self.snapshot, self.words, self.problem = None, words, problem

    def set_mode(self, name: str) -> str:
        """Shows mode `name`, the engine's default when that is empty or unknown; what it is in words."""
        card = self._card(name) or self._default
        if card is None:
            return ""
        self.mode = ModeLabel(card.name, card.exact)
        return f"{self.mode}: {card.summary}"

    def label_of(self, name: str) -> ModeLabel | None:
        """Mode `name`; None where the engine does not know it."""
        card = self._card(name)
        return ModeLabel(card.name, card.exact) if card else None

    def mode_of(self, answer: Answer) -> ModeLabel | None:
        """What `answer` is written in, whatever was chosen since; None while no engine says what that is."""
        card = self._card(answer.mode or answer.asked) or self._default
        if card is not None:
            return ModeLabel(card.name, card.exact and not answer.begun_lossy)
        return self.mode if self.mode and self.mode.name == answer.asked else None

    def next_mode(self, answer: Answer) -> ModeLabel | None:
        """What the answer after `answer` will be written in, None where that is the same."""
        card = self._card(answer.asked) or self._default
        return None if card is None or not self.mode or self.mode.name == card.name else self.mode

    def _card(self, name: str) -> ModeCard | None:
        return next((m for m in (self.snapshot.modes if self.snapshot else ()) if m.name == name), None)

    @property
    def _default(self) -> ModeCard | None:
        return self._card(self.snapshot.settings.mode) if self.snapshot else None

    def mode_after(self, name: str, step: int = 1) -> str:
        """The one of the engine's modes to chat in that is `step` further, "" while they are not known."""
        names = [mode.name for mode in self.snapshot.modes if not mode.compared] if self.snapshot else []
        if name not in names and self.mode is not None:
            name = self.mode.name
        return names[(names.index(name) + step) % len(names)] if name in names else next(iter(names), "")

    def mode_named(self, name: str) -> str:
        """`name` if it is a mode of the engine, else ""."""
        return name if self._card(name) else ""

    @property
    def mode_names(self) -> str:
        """All modes of the engine, in words; "" while they are not known."""
        names = [mode.name for mode in self.snapshot.modes] if self.snapshot else []
        return "The modes are " + ", ".join(names) if names else ""

    def context_used(self, last: Entry | None, meter: Meter | None) -> int:
        """Tokens of the next prompt where they were counted, else those of `last`."""
        if meter is not None and meter.tokens is not None:
            return meter.tokens
        return last.timings.context_n if last and last.timings else 0

    def status(
        self, answer: Answer | None, stopping: bool, last: Entry | None, meter: Meter | None = None
    ) -> Status:
        kind, words = self._state(answer, stopping)
        model = self.snapshot.model if self.snapshot else None
        budget = self.snapshot.budget_bytes if self.snapshot else 0
        counted = meter if answer is None else None
        used = answer.timings.context_n if answer and answer.timings else self.context_used(last, counted)
        timings = answer.timings if answer else None
        if answer is None and last and (not self.mode or last.mode == self.mode.name):
            timings = last.timings  # the numbers of another mode would be taken for those of this one
        return Status(
            kind=kind,
            words=words,
            model=model_name(model.name) if model else "",
            place=one_line(self.place, 40),
            mode=self.mode_of(answer) if answer else self.mode,
            next_mode=self.next_mode(answer) if answer else None,
            timings=timings,
            context_n=used,
            context_size=self.context_size,
            memory=memory(self.snapshot.rss_bytes, budget) if self.snapshot and budget else "",
            has_store=bool(budget and self.snapshot and self.snapshot.plan and self.snapshot.plan.store),
        )

    def _state(self, answer: Answer | None, stopping: bool) -> tuple[str, str]:
        engine = self._engine_state()
        if answer is None:
            return engine
        if stopping:
            return "stopping", "stopping"
        if answer.text:
            return "answering", "answering"
        if words := answer.prefill.words:
            return "answering", words
        if engine[0] == "ready":
            queued = self.snapshot is not None and self.snapshot.queued > 0
            return "waiting", "waiting for another chat's answer" if queued else awaited(self.place)
        return engine

    def _engine_state(self) -> tuple[str, str]:
        if self.snapshot is None:
            return "problem" if self.problem else "waiting", self.words
        if self.snapshot.state == "loading":
            return "waiting", f"loading the model {100 * self.snapshot.progress:.0f}%"
        if self.snapshot.state == "ready":
            return "ready", "ready"
        if self.snapshot.state == "error":
            return "problem", one_line(self.snapshot.error or "the model cannot be loaded")
        return "waiting", "no model yet"
