"""A loaded model with its context and KV cache: one mutable timeline, decoded a pass at a time."""

from __future__ import annotations

import ctypes
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.chat import CHATML, ChatTemplate, Message
from engine.errors import BadRequest, Cancelled, ModelError, NativeError
from engine.events import ExpertMap
from engine.experience import Experience
from engine.experts import catalogue_of
from engine.heat import heat_file, read_heat, write_heat
from engine.memory import rss_bytes
from engine.model import ModelInfo, read_model_info
from engine.native import CancelFlag, Hooks, llama, log
from engine.pack import pack_of
from engine.placement import NONE
from engine.plan import Plan
from engine.prices import Load
from engine.reuse import Reuse
from engine.shelf import Shelf
from engine.size import size
from engine.store import Store
from engine.thoughts import opens_thoughts
from engine.threads import ThreadGovernor
from engine.timeline import ROWS_EXACT, Timeline
from engine.tools import Tools
from engine.union import COMING, THERE, ExpertUnion
from engine.vocab import Vocab

_REPLIES_KEPT = 256  # answers whose token ids are remembered, so that their KV cells are found again
_GGML_TYPES = {"f16": 1, "q8_0": 8}  # enum ggml_type
_TAG_TOKENS = 12  # more than any tag of thoughts takes
_LOAD_WITHOUT_MAPPING = 0  # enum llama_load_mode
_RESERVE = 32 << 20  # bytes: what the process still grows by when it works
_DECODE_NO_ROOM, _DECODE_ABORTED = 1, 2  # return values of llama_decode


class Session:
    """One model, one llama context, one sequence. Not thread-safe: the decode thread owns it."""

    def __init__(
        self, info: ModelInfo, plan: Plan, model: Any, context: Any, store: Store | None = None
    ) -> None:
        self._llama = llama()
        self.store = store
        self._heat: Path | None = None
        self._shelf: Shelf | None = None
        self._model, self._context = model, context
        self._memory = self._llama.llama_get_memory(context)
        self._batch = self._llama.llama_batch_init(plan.n_ubatch, 0, 1)
        # Each look at a pointer field of a ctypes struct makes a new object; these are looked at per token.
        self._tokens, self._positions, self._outputs = self._batch.token, self._batch.pos, self._batch.logits
        for i in range(plan.n_ubatch):
            self._batch.n_seq_id[i] = 1
            self._batch.seq_id[i][0] = 0
        self.info, self.plan = info, plan
        self.vocab = Vocab(model)
        self.hooks = Hooks(context)
        self.hooks.set_rows_exact(ROWS_EXACT)
        self.timeline = Timeline()
        self._governor = ThreadGovernor(plan.n_threads, fixed=plan.threads_fixed)
        self.n_ctx = int(self._llama.llama_n_ctx_seq(context))
        self.notices: list[str] = list(plan.notices)
        self.experience = Experience()
        self.can_rewind = self._check_can_rewind()
        self.can_draft = self.can_rewind and info.is_moe
        if not self.can_rewind:
            self.plan = replace(plan, speculation=replace(plan.speculation, mode="ar"))
        # GPU kernels are chosen by the number of rows, so a verify pass may round unlike plain decode.
        self.exact = plan.gpu_layers == NONE or not self._llama.llama_supports_gpu_offload()
        if not self.exact:
            self.notices.append("on a GPU the exact modes are ≈: kernels differ by width, the text may too")
        self._template = self._chat_template()
        self.channels = self._template.channels
        if self.channels is not None:
            self.vocab.break_names(self.channels.dialect.marks)
        # Answers and the ids they were generated as: what the next prompt tells of them, and all of them.
        self._replies: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._wholes: OrderedDict[str, tuple[int, ...]] = OrderedDict()
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
    ) -> Session:
        """Loads the model at `path` as `plan` says. `on_progress` hears fractions from 0 to 1.

        `heat`: a folder that remembers which experts are used, from one start to the next.
        Raises ModelError when the file cannot be used, Cancelled when `cancel` was set.
        """
        info = read_model_info(path)
        bindings = llama()
        notices: list[str] = []
        catalogue = (pack_of(path, notices.append) or catalogue_of(path)) if plan.store else None
        if catalogue is None or not catalogue.tensors:
            plan = replace(plan, store=False)
            model, context = _open(bindings, info, plan, on_progress, cancel)
            return cls(info, plan, model, context)
        store = Store.open(catalogue)
        plan = replace(plan, reasons={**plan.reasons, "reading": store.reason})
        if store.refused:
            folder = catalogue.files[0].parent
            notices.append(f"{folder} can be read through the page cache only, which takes longer")
        try:
            with store.loading():
                model, context = _open(bindings, info, plan, on_progress, cancel)
        except BaseException:
            store.close()
            raise
        session = cls(info, plan, model, context, store)
        session.notices += notices
        try:
            session._fill_store(heat_file(info, heat) if heat is not None else None)
        except BaseException:
            session.close()
            raise
        return session

    # --- prompts

    def tokenize_chat(
        self,
        messages: Sequence[Message],
        *,
        thinking: bool | None = None,
        effort: str | None = None,
        tools: Tools | None = None,
    ) -> tuple[int, ...]:
        """The prompt for the next answer in `messages`, by the model's chat template.

        `thinking`, `effort`: whether the model thinks first and how much, where the template lets one choose.
        None is its default.
        """
        if thinking is not None and not self.can_switch_thoughts:
            raise BadRequest("the model's chat template has no switch for thinking", hint="leave it out")
        if effort is not None and not self.can_set_effort:
            raise BadRequest("the model's chat template has no levels of reasoning", hint="leave it out")
        return self._template.tokenize(
            messages, self._replies, self.n_ctx, thinking=thinking, effort=effort, tools=tools
        )

    def tokenize_continued(
        self, messages: Sequence[Message], *, thinking: bool | None = None, effort: str | None = None
    ) -> tuple[tuple[int, ...], int]:
        """The prompt that lets the last of `messages`, an answer, go on; how many of its tokens are the
        answer.

        An answer this session gave keeps its ids, so that it goes on as if it had never ended.
        """
        *before, last = messages
        if last.role != "assistant":
            raise BadRequest("the last message is no answer that could go on")
        prompt = self.tokenize_chat(before, thinking=thinking, effort=effort)
        opened = self.opens_thoughts(prompt)
        # The template has written the tag already that this answer begins with.
        text = last.content.removeprefix(opened) if opened else last.content
        answer = self._wholes.get(text)
        if answer is None:
            answer = self.channels.tokens(text) if self.channels else self._template.tokenize_answer(text)
        return prompt + answer, len(answer)

    def opens_thoughts(self, prompt: Sequence[int]) -> str:
        """The tag of thoughts, and white space behind it, that `prompt` ends with; "" for none."""
        tail = prompt[-_TAG_TOKENS:]
        return opens_thoughts("".join(self.vocab.text((t,)) or self.vocab.name(t) for t in tail))

    @property
    def can_switch_thoughts(self) -> bool:
        """Whether the chat template lets the caller choose if the model thinks first."""
        return self._template.can_switch_thoughts

    @property
    def can_set_effort(self) -> bool:
        """Whether the chat template lets the caller choose how much the model thinks."""
        return self._template.can_set_effort

    def tokenize_text(self, text: str) -> tuple[int, ...]:
        """`text` as it stands, special tokens in it included."""
        self.vocab.check_fits(text, self.n_ctx)
        return tuple(self.vocab.tokenize(text, add_special=True, parse_special=True))

    def text_of(self, answer: Sequence[int], *, in_dialect: bool) -> str:
        """How `answer` reads: as text, or as the model's dialect writes it."""
        return self.channels.text(answer) if in_dialect and self.channels else self.vocab.text(tuple(answer))

    def remember_reply(self, text: str, tokens: Sequence[int], *, in_dialect: bool = False) -> None:
        """Notes the ids an answer was generated as: its text alone may tokenise to others."""
        if not text or text != self.text_of(tokens, in_dialect=in_dialect):
            return
        _remember(self._wholes, text, tuple(tokens))
        told = self.channels.told(tokens) if in_dialect and self.channels else (text, tuple(tokens))
        if told[0]:
            _remember(self._replies, *told)

    # --- decoding

    @property
    def n_threads(self) -> int:
        """Threads of the next pass: the plan's, or fewer while others use the machine."""
        return self._governor.threads

    @property
    def context(self) -> Any:
        """The llama context, for samplers."""
        return self._context

    def decode(self, tokens: Sequence[int], start: int, *, all_logits: bool) -> None:
        """One pass over `tokens` at positions from `start`; the timeline is not touched.

        Logits are kept for every row, or for the last one only. At most `plan.n_ubatch` tokens, and with all
        logits `plan.n_outputs`.
        Raises Cancelled when the flag given to `hooks.stop_on` was set, NativeError on failure; the cells of
        a failed pass are gone.
        """
        if all_logits and len(tokens) > self.plan.n_outputs:
            raise NativeError(f"logits of {len(tokens)} rows, there is room for {self.plan.n_outputs}")
        last = len(tokens) - 1
        self._batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            self._tokens[i] = token
            self._positions[i] = start + i
            self._outputs[i] = all_logits or i == last
        self._governor.before_pass()
        status = self._llama.llama_decode(self._context, self._batch)
        if self._governor.after_pass():
            self._llama.llama_set_n_threads(self._context, self._governor.threads, self._governor.threads)
        fault = self._end_store_pass()
        if status == 0 and fault is None:
            return
        self._llama.llama_memory_seq_rm(self._memory, 0, start, -1)
        if fault is not None:
            raise ModelError(fault, hint="check the disk and the file, then ask again")
        if status == _DECODE_ABORTED:
            raise Cancelled("stopped")
        if status == _DECODE_NO_ROOM:
            raise NativeError(f"no room for {len(tokens)} tokens in the KV cache at {start} of {self.n_ctx}")
        raise NativeError(f"decoding failed with status {status}: {log.last() or 'no reason given'}")

    def decode_full(self, tokens: Sequence[int], start: int) -> None:
        """One pass of the target with all its experts, logits for every row, whose price is noted."""
        before, started = self._store_look(), time.perf_counter()
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
    def drafting(self, experts: int, *, from_memory: bool) -> Iterator[None]:
        """Passes inside use `experts` per token, with a store those in memory if `from_memory`, and leave no
        trace in what the store learns."""
        store = self.store
        self.hooks.set_routing(self._keeps_routing or store is not None)
        self.hooks.set_experts(experts)
        if store is not None:
            store.set_drafting(True)
            self.hooks.set_from_memory(store.handle if from_memory and not store.is_whole else None)
        try:
            yield
        finally:
            self.hooks.set_experts(0)
            if store is not None:
                self.hooks.set_from_memory(None)
                store.set_drafting(False)

    def chosen_experts(self) -> npt.NDArray[np.int32] | None:
        """What the target would choose for the one row of the last draft pass, I32 [layers, k]; None without
        a store."""
        if self.store is None:
            return None
        return self.hooks.best_experts(self.store.n_layers, self.info.n_expert_used)

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

    def resume(self, prompt: Sequence[int], *, exact: bool) -> int:
        """Lets the cache hold as much of the beginning of `prompt` as is known, no more; says how much.

        For an exact answer that is nothing a lossy pass wrote.
        """
        shelf = self._shelf
        if shelf is not None and (found := shelf.swap(self.timeline, prompt, exact=exact)) is not None:
            self.timeline = found
        return self.rewind(self.timeline.reusable(prompt, exact=exact))

    def keep_conversations(self, room: Callable[[], int]) -> None:
        """From now on a conversation that another pushes out of the cache is kept; all take `room` bytes."""
        self._shelf = Shelf(self._context, room)

    @property
    def kept_bytes(self) -> int:
        return 0 if self._shelf is None else self._shelf.size_bytes

    def forget_conversations(self) -> None:
        """Gives back the memory of those that are kept."""
        if self._shelf is not None:
            self._shelf.clear()

    def rewind(self, length: int) -> int:
        """Cuts cache and timeline to `length` tokens; returns what is left (0 if it cannot be cut)."""
        if not self._llama.llama_memory_seq_rm(self._memory, 0, length, -1):
            self._llama.llama_memory_clear(self._memory, True)
            length = 0
        self.timeline.cut(length)
        return length

    def save_heat(self) -> None:
        """Leaves for the next start which experts are used, where `load` was told to."""
        if self.store is not None and self._heat is not None and (heat := self.store.heat()).any():
            write_heat(self._heat, heat)

    def close(self) -> None:
        """Frees the model and all that belongs to it."""
        if self._context is not None:
            self._llama.llama_batch_free(self._batch)
            self._llama.llama_free(self._context)
            self._llama.llama_model_free(self._model)
            self._context = self._model = None
            if self.store is not None:
                self.store.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _store_look(self) -> tuple[int, int, int]:
        """Experts asked for so far, those in memory and those on their way then."""
        return (0, 0, 0) if self.store is None else self.store.asked()

    def _end_store_pass(self) -> str | None:
        """What went wrong with a read during the pass; None when nothing did."""
        if self.store is None:
            return None
        self.store.end_pass()
        return self.store.take_fault()

    def _fill_store(self, heat: Path | None) -> None:
        """Gives the store what the budget leaves beside all that is in memory already, and begins to read."""
        assert self.store is not None
        room = self.store.bytes_all
        if self.plan.budget_bytes:
            used = rss_bytes() + self.hooks.compute_bytes() + _RESERVE
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

    def _check_can_rewind(self) -> bool:
        """Whether drafts can be rolled back."""
        if self._llama.llama_model_is_recurrent(self._model) or self._llama.llama_model_is_hybrid(
            self._model
        ):
            self.notices.append(f"{self.info.arch} keeps a state that cannot be rolled back: it runs in ar")
            return False
        return True

    def _chat_template(self) -> ChatTemplate:
        source = self._llama.llama_model_chat_template(self._model, None)
        if not source:
            self.notices.append("the model brings no chat template: ChatML is used, answers may ramble")
        try:
            return ChatTemplate(bytes(source or b"").decode("utf-8", "replace") or CHATML, self.vocab)
        except BadRequest as error:
            self.notices.append(f"{error.message}: ChatML is used, answers may ramble")
            return ChatTemplate(CHATML, self.vocab)


def _remember(known: OrderedDict[str, tuple[int, ...]], text: str, tokens: tuple[int, ...]) -> None:
    known[text] = tokens
    known.move_to_end(text)
    if len(known) > _REPLIES_KEPT:
        known.popitem(last=False)


def _open(
    bindings: Any,
    info: ModelInfo,
    plan: Plan,
    on_progress: Callable[[float], None] | None,
    cancel: CancelFlag | None,
) -> tuple[Any, Any]:
    """The llama model and its context."""
    log.clear()
    model = _load_model(bindings, info, plan, on_progress, cancel)
    try:
        return model, _make_context(bindings, model, info, plan)
    except BaseException:
        bindings.llama_model_free(model)
        raise


def _load_model(
    bindings: Any,
    info: ModelInfo,
    plan: Plan,
    on_progress: Callable[[float], None] | None,
    cancel: CancelFlag | None,
) -> Any:
    def progress(fraction: float, _: Any) -> bool:
        if on_progress is not None:
            on_progress(fraction)
        return cancel is None or not cancel.is_set

    params = bindings.llama_model_default_params()
    params.use_extra_bufts = plan.repack or plan.store
    if plan.store:  # pages of a mapped file are memory that no budget holds
        params.load_mode = _LOAD_WITHOUT_MAPPING
    nowhere = (ctypes.c_void_p * 1)()  # a list that ends at once
    if plan.gpu_layers == NONE:
        params.devices = ctypes.addressof(nowhere)
    params.progress_callback = bindings.llama_progress_callback(progress)
    model = bindings.llama_model_load_from_file(os.fsencode(info.path), params)
    if model is None:
        if cancel is not None and cancel.is_set:
            raise Cancelled("loading was stopped")
        raise ModelError(
            f"{info.path}: {log.last() or 'llama.cpp cannot load it'}", hint="see the engine's log"
        )
    return model


def _make_context(bindings: Any, model: Any, info: ModelInfo, plan: Plan) -> Any:
    if bindings.llama_model_has_encoder(model) or bindings.llama_model_is_diffusion(model):
        raise ModelError(
            f"{info.path}: {info.arch} is not a model that chats", hint="use a text generation model"
        )
    params = bindings.llama_context_default_params()
    params.n_ctx = plan.n_ctx
    params.n_batch = params.n_ubatch = plan.n_ubatch
    params.n_outputs_max = params.n_outputs_max_per_seq = plan.n_outputs
    params.n_threads = params.n_threads_batch = plan.n_threads
    params.type_k = params.type_v = _GGML_TYPES[plan.cache_type]
    params.swa_full = True  # a sliding window that forgets cannot be rolled back
    params.no_perf = True
    context = bindings.llama_init_from_model(model, params)
    if context is None:
        raise ModelError(
            f"{info.path}: no context of {plan.n_ctx} tokens: {log.last() or 'not enough memory'}",
            hint="try a smaller -c" if plan.cache_type == "f16" else "try a smaller -c, or --cache-type f16",
        )
    return context
