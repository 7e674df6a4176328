"""A loaded model with its context and KV cache: one mutable timeline, decoded a pass at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.calibration import Calibration
from engine.context import Context
from engine.dialogue import Dialogue
from engine.draft_context import Annex
from engine.errors import BadRequest
from engine.events import ExpertMap
from engine.experience import Experience
from engine.experts import catalogue_of
from engine.governor import MemoryGovernor
from engine.heat import heat_file, read_heat, write_heat
from engine.memory import give_back, rss_bytes
from engine.model import ModelInfo, read_model_info
from engine.native import CancelFlag, Hooks, llama
from engine.need import GROWTH_BYTES, cell_bytes
from engine.opening import open_model
from engine.pack import pack_of
from engine.placement import NONE
from engine.plan import Plan
from engine.prices import Load
from engine.reuse import Reuse
from engine.shelf import Shelf
from engine.size import size
from engine.store import Store
from engine.strain import read_strain, spare
from engine.timeline import Timeline
from engine.union import COMING, THERE, ExpertUnion
from engine.vocab import Vocab

_DRAFT_OUTPUTS = 1


class Session:
    """One model, one llama context, one conversation. Not thread-safe: the decode thread owns it."""

    def __init__(
        self, info: ModelInfo, plan: Plan, model: Any, target: Context, store: Store | None = None
    ) -> None:
        self._llama = llama()
        self.store = store
        self.governor: MemoryGovernor | None = None
        self.calibration: Calibration | None = None
        self._heat: Path | None = None
        self._shelf: Shelf | None = None
        self._model, self.target = model, target
        self.info, self.plan = info, plan
        self.vocab = Vocab(model)
        self.hooks, self.n_ctx = target.hooks, target.n_ctx
        self.timeline = Timeline()
        self.annex = Annex(self._second_context, self._second_bytes, self._lend)
        self.notices: list[str] = list(plan.notices)
        self.experience = Experience()
        self.can_rewind = self._check_can_rewind()
        self.can_draft = self.can_rewind and info.is_moe
        self.can_branch = self.can_draft and target.branches is not None
        if not self.can_rewind:
            self.plan = replace(plan, speculation=replace(plan.speculation, mode="ar"))
        # GPU kernels are chosen by the number of rows, so a verify pass may round unlike plain decode.
        self.exact = plan.gpu_layers == NONE or not self._llama.llama_supports_gpu_offload()
        if not self.exact:
            self.notices.append("on a GPU the exact modes are ≈: kernels differ by width, the text may too")
        self.dialogue = Dialogue(model, self.vocab, self.n_ctx, self.notices)
        self._keeps_routing = False

    @classmethod
    def load(
        cls,
        path: Path,
        plan: Plan,
        *,
        on_progress: Callable[[float], None] | None = None,
        cancel: CancelFlag | None = None,
        heat: Path | None = None,
        growth: int = GROWTH_BYTES,
    ) -> Session:
        """Loads the model at `path` as `plan` says. `on_progress` hears fractions from 0 to 1.

        `heat`: a folder that remembers which experts are used, from one start to the next. `growth`: bytes
        of a budget that stay free, as the process is going to grow by them beside the model.
        Raises ModelError when the file cannot be used, Cancelled when `cancel` was set.
        """
        info = read_model_info(path)
        bindings = llama()
        notices: list[str] = []
        catalogue = (pack_of(path, notices.append) or catalogue_of(path)) if plan.store else None
        if catalogue is None or not catalogue.tensors:
            plan = replace(plan, store=False)
            return cls(info, plan, *open_model(bindings, info, plan, on_progress, cancel))
        store = Store.open(catalogue)
        plan = replace(plan, reasons={**plan.reasons, "reading": store.reason})
        if store.refused:
            folder = catalogue.files[0].parent
            notices.append(f"{folder} can be read through the page cache only, which takes longer")
        try:
            with store.loading():
                model, target = open_model(bindings, info, plan, on_progress, cancel, store)
        except BaseException:
            store.close()
            raise
        session = cls(info, plan, model, target, store)
        session.notices += notices
        try:
            session._fill_store(heat_file(info, heat) if heat is not None else None, growth)
        except BaseException:
            session.close()
            raise
        return session

    # --- decoding

    @property
    def n_threads(self) -> int:
        """Threads of the next pass: the plan's, or fewer while others use the machine."""
        return self.target.threads.threads

    @property
    def context(self) -> Any:
        """The llama context, for samplers."""
        return self.target.handle

    def stop_on(self, flag: CancelFlag) -> None:
        """Passes end early once `flag` is set."""
        self.hooks.stop_on(flag)
        self.annex.stop_on(flag)

    def decode(self, tokens: Sequence[int], start: int, *, all_logits: bool) -> None:
        """As `Context.decode`; the timeline is not touched. With all logits at most `plan.n_outputs` rows."""
        self.target.decode(tokens, start, all_logits=all_logits)

    def decode_full(self, tokens: Sequence[int], start: int, parents: Sequence[int] = ()) -> None:
        """One pass of the target with all its experts, logits for every row, whose price is noted.

        `parents`: of a tree, the row that each behind the first follows; `keep_branch` or a cut comes next.
        """
        before, started = self._store_look(), time.perf_counter()
        if parents:
            self.target.decode_tree(tokens, parents, start)
        else:
            self.decode(tokens, start, all_logits=True)
        ms, after = 1e3 * (time.perf_counter() - started), self._store_look()
        asked, hits, late = (now - then for now, then in zip(after, before, strict=True))
        self.experience.prices.passed(Load(len(tokens), hits, late, asked - hits - late), ms)

    @contextmanager
    def leaning(self, reuse: Reuse, claims: Sequence[float]) -> Iterator[None]:
        """A verify pass inside, of a root and drafts of probabilities `claims`, is biased as `reuse` says."""
        self.hooks.set_gating(reuse.cap, reuse.beta, reuse.confidences(claims))
        try:
            yield
        finally:
            self.hooks.set_gating(0, 0.0, ())

    @contextmanager
    def drafting(self, experts: int, *, from_memory: bool, hooks: Hooks | None = None) -> Iterator[None]:
        """Passes inside use `experts` per token, with a store those in memory if `from_memory`, and leave no
        trace in what the store learns. `hooks`: of the context that drafts, if it is another than ours."""
        store, hooks = self.store, hooks or self.hooks
        hooks.set_routing(self._keeps_routing or store is not None)
        hooks.set_experts(experts)
        if store is not None:
            store.set_drafting(True)
            hooks.set_from_memory(store.handle if from_memory and not store.is_whole else None)
        try:
            yield
        finally:
            hooks.set_experts(0)
            if store is not None:
                hooks.set_from_memory(None)
                store.set_drafting(False)

    def chosen_experts(self, hooks: Hooks | None = None) -> npt.NDArray[np.int32] | None:
        """What the target would choose for the one row of the last draft pass, I32 [layers, k]; None without
        a store. `hooks` as in `drafting`."""
        if self.store is None:
            return None
        return (hooks or self.hooks).best_experts(self.store.n_layers, self.info.n_expert_used)

    def keep_routing(self, on: bool) -> None:
        """Whether full passes that follow keep their routing for `experts_of_pass`. A change plans the memory
        of the graphs anew, so only a change is passed on."""
        if on != self._keeps_routing:
            self._keeps_routing = on
            self.hooks.set_routing(on)

    def where_experts(self) -> npt.NDArray[np.uint8] | None:
        """As `Store.where`; None where all are in memory."""
        return None if self.store is None or self.store.is_whole else self.store.where()

    def experts_of_pass(self, rows: int, where: npt.NDArray[np.uint8] | None) -> ExpertMap | None:
        """What the last pass, of `rows` rows, used; `where` each expert was before it. None where the pass
        kept no routing."""
        store = self.store
        layers = self.hooks.routing_layers() if store is None else store.n_layers
        each = self.info.n_expert if store is None else store.n_expert
        best = self.hooks.best_experts(layers, self.info.n_expert_used, rows) if layers else None
        if best is None:
            return None
        used = np.zeros((layers, each), dtype=bool)
        used[np.arange(layers)[:, None], best] = True
        there = coming = None
        if where is not None:
            there, coming = (np.packbits(where == place).tobytes() for place in (THERE, COMING))
        return ExpertMap(layers, each, np.packbits(used).tobytes(), there, coming)

    def expert_union(self) -> ExpertUnion | None:
        """An empty verify pass, with a look at which experts are in memory now; None without a store."""
        if self.store is None:
            return None
        return ExpertUnion(self.store.n_layers, self.store.n_expert, self.where_experts())

    def extend(self, tokens: Sequence[int], *, all_logits: bool) -> None:
        """Decodes `tokens` behind the timeline and appends them to it."""
        self.decode(tokens, len(self.timeline), all_logits=all_logits)
        self.keep(tokens)

    def keep(self, tokens: Sequence[int]) -> None:
        """Appends the first tokens of the last pass to the timeline: they are accepted."""
        self.timeline.append(tokens)
        if self.store is not None:
            self.store.credit(len(tokens))

    def keep_branch(self, tokens: Sequence[int], path: Sequence[int]) -> None:
        """Of the last pass, a tree, the rows of `path` are accepted, which are `tokens`; the others go."""
        in_place = self.target.accept(len(self.timeline), path)
        self.timeline.append(tokens)
        if self.store is not None:
            self.store.credit(in_place)  # the first rows: of those behind it is not known who is accepted

    def resume(self, prompt: Sequence[int], *, exact: bool) -> int:
        """Lets the cache hold as much of the beginning of `prompt` as is known, no more; says how much.

        For an exact answer that is nothing a lossy pass wrote.
        """
        shelf = self._shelf
        if shelf is not None and (found := shelf.swap(self.timeline, prompt, exact=exact)) is not None:
            self.timeline = found
        return self.rewind(self.timeline.reusable(prompt, exact=exact))

    def keep_conversations(self, room: Callable[[], int]) -> None:
        """From now on a conversation that another pushes out of the cache is kept; all take `room` bytes.

        Not behind a sliding window: llama.cpp copies what the window sees from a conversation's end alone,
        and to other cells, so what is put back can neither be cut nor goes on to the bit.
        """
        if not self._llama.llama_model_n_swa(self._model):
            self._shelf = Shelf(self.target.handle, room)

    @property
    def kept_bytes(self) -> int:
        return 0 if self._shelf is None else self._shelf.size_bytes

    def forget_conversations(self) -> None:
        """Gives back the memory of those that are kept, and of a second context that nobody needs."""
        if self._shelf is not None:
            self._shelf.clear()
        self.annex.rest()
        give_back()

    def rewind(self, length: int) -> int:
        """Cuts cache and timeline to `length` tokens; returns what is left (0 if it cannot be cut)."""
        length = self.target.cut(length)
        self.timeline.cut(length)
        return length

    def calibrate(self, file: Path) -> None:
        """From now on the k' that drafts best here is looked for, and left in `file`."""
        speculation = self.plan.speculation
        if self.can_draft and self.info.n_expert_used > 1:
            self.calibration = Calibration(
                self.info,
                self.experience,
                default=speculation.draft_experts,
                longest=max(1, speculation.draft_length),
                file=file,
            )

    def save_heat(self) -> None:
        """Leaves for the next start which experts are used, where `load` was told to."""
        if self.store is not None and self._heat is not None and (heat := self.store.heat()).any():
            write_heat(self._heat, heat)

    def close(self) -> None:
        """Frees the model and all that belongs to it."""
        if self._model is None:
            return
        if self.governor is not None:
            self.governor.close()
        self.annex.close()
        self.target.close()
        self._llama.llama_model_free(self._model)
        self._model = None
        if self.store is not None:
            self.store.close()
        give_back()  # what the next model may take is counted from what this process holds

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _store_look(self) -> tuple[int, int, int]:
        """Experts asked for so far, those in memory and those on their way then."""
        return (0, 0, 0) if self.store is None else self.store.asked()

    def _second_context(self) -> Context:
        """Another one of the same size over the same model, for drafts: a row of logits is enough for it."""
        return Context(
            self._model, self.info, self.plan, self.target.threads, self.store, n_outputs=_DRAFT_OUTPUTS
        )

    def _second_bytes(self) -> int:
        """What it takes, as far as one knows before."""
        cells = self.n_ctx * cell_bytes(self.info, self.plan.cache_type)
        return cells + self.hooks.compute_bytes() + _DRAFT_OUTPUTS * self.info.output_bytes

    def _lend(self, n_bytes: int) -> None:
        """Memory for something beside the experts, or back from it; raises BadRequest where there is none."""
        if n_bytes > 0:
            self.forget_conversations()
        if self.governor is not None:
            self.governor.lend(n_bytes)
            return
        budget = self.plan.budget_bytes
        free = budget - rss_bytes() - GROWTH_BYTES if budget else spare(read_strain())
        if n_bytes > max(0, free):
            raise BadRequest(
                f"{size(n_bytes)} more do not fit into the {size(max(0, free))} that may be taken"
            )

    def _fill_store(self, heat: Path | None, growth: int) -> None:
        """Gives the store what the budget leaves beside all that is in memory already, and begins to read."""
        assert self.store is not None
        give_back()  # what loading is done with
        room, used = self.store.bytes_all, rss_bytes() + self.hooks.compute_bytes() + growth
        if self.plan.budget_bytes:
            room = self.plan.budget_bytes - used
            if room < self.store.bytes_min:
                least = -(-(used + self.store.bytes_min) // (1 << 20))
                raise BadRequest(
                    f"a budget of {size(self.plan.budget_bytes)} is too small for this model",
                    hint=f"at least {least}M: everything but the experts takes {size(used)}",
                )
        self._heat = heat
        if heat is not None and (known := read_heat(heat)) is not None:
            self.store.set_heat(known)
        self.store.resize(room)
        self.store.warm()
        self.governor = MemoryGovernor.of(self.store, self.plan, self.info, used)

    def _check_can_rewind(self) -> bool:
        """Whether drafts can be rolled back."""
        if self._llama.llama_model_is_recurrent(self._model) or self._llama.llama_model_is_hybrid(
            self._model
        ):
            self.notices.append(f"{self.info.arch} keeps a state that cannot be rolled back: it runs in ar")
            return False
        return True
