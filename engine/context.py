"""One llama context over a loaded model: a KV cache of one conversation, decoded a pass at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.branches import SEQUENCES, Branches, can_branch, depths_of, ways_of
from engine.errors import Cancelled, ModelError, NativeError
from engine.model import ModelInfo
from engine.native import Hooks, llama, log
from engine.plan import Plan
from engine.store import Store
from engine.threads import ThreadGovernor
from engine.timeline import ROWS_EXACT

_GGML_TYPES = {"f16": 1, "q8_0": 8}  # enum ggml_type
_DECODE_NO_ROOM, _DECODE_ABORTED = 1, 2  # return values of llama_decode


class Context:
    """Contexts of one model share its weights, its `store` and its `threads`; their passes never run at the
    same time. `handle`: the llama context, for samplers. `n_ctx`: cells. `branches`: None where drafts
    have to be chains."""

    def __init__(
        self,
        model: Any,
        info: ModelInfo,
        plan: Plan,
        threads: ThreadGovernor,
        store: Store | None,
        *,
        n_outputs: int,
    ) -> None:
        """Raises ModelError where there is no memory for it, or the model is none that chats."""
        self._llama = llama()
        self._n_outputs, self._n_threads = n_outputs, plan.n_threads
        self.threads, self._store = threads, store
        sequences = SEQUENCES if can_branch(model, info, n_outputs) else 1
        self.handle = _open(self._llama, model, info, plan, n_outputs, sequences)
        self.hooks = Hooks(self.handle)
        self.hooks.set_rows_exact(ROWS_EXACT)
        self.n_ctx = int(self._llama.llama_n_ctx_seq(self.handle))
        self._memory = self._llama.llama_get_memory(self.handle)
        self.branches = Branches(self.handle) if sequences > 1 else None
        self._batch = self._llama.llama_batch_init(plan.n_ubatch, 0, sequences)
        # Each look at a pointer field of a ctypes struct makes a new object; these are looked at per token.
        self._tokens, self._positions, self._outputs = self._batch.token, self._batch.pos, self._batch.logits
        for i in range(plan.n_ubatch):
            self._batch.n_seq_id[i] = 1
            self._batch.seq_id[i][0] = 0

    def decode(self, tokens: Sequence[int], start: int, *, all_logits: bool) -> None:
        """One pass over `tokens` at positions from `start`.

        Logits are kept for every row, or for the last one only. At most `plan.n_ubatch` tokens, and with all
        logits `n_outputs`.
        Raises Cancelled when the flag given to `hooks.stop_on` was set, NativeError on failure; the cells of
        a failed pass are gone.
        """
        self._check_room(len(tokens) if all_logits else 1)
        last = len(tokens) - 1
        for i, token in enumerate(tokens):
            self._tokens[i] = token
            self._positions[i] = start + i
            self._outputs[i] = all_logits or i == last
        self._pass(len(tokens), start)

    def decode_in(self, branch: int, token: int, position: int) -> None:
        """One row behind `branch`, as `decode`."""
        self._batch.seq_id[0][0] = branch
        try:
            self.decode((token,), position, all_logits=True)
        finally:
            self._batch.seq_id[0][0] = 0

    def decode_tree(self, tokens: Sequence[int], parents: Sequence[int], start: int) -> None:
        """One pass over a root at position `start` and what may follow it: row i + 1 follows row parents[i].

        Logits are kept for every row. Raises as `decode`. `accept` has to follow, or a cut.
        """
        assert self.branches is not None
        self._check_room(len(tokens))
        depths, self._ways = depths_of(parents), ways_of(parents)
        for branch in self._ways[0]:
            self.branches.share(branch, start)
        try:
            for i, (token, depth, ways) in enumerate(zip(tokens, depths, self._ways, strict=True)):
                self._tokens[i], self._positions[i], self._outputs[i] = token, start + depth, True
                self._batch.n_seq_id[i] = len(ways)
                numbers = self._batch.seq_id[i]
                for place, way in enumerate(ways):
                    numbers[place] = way
            self._pass(len(tokens), start)
        finally:
            for i in range(len(tokens)):
                self._batch.n_seq_id[i] = 1
                self._batch.seq_id[i][0] = 0

    def accept(self, start: int, path: Sequence[int]) -> int:
        """Of the tree decoded last at `start`, the rows of `path` stay; as `Branches.accept`."""
        assert self.branches is not None
        return self.branches.accept(start, path, self._ways)

    def _check_room(self, outputs: int) -> None:
        if outputs > self._n_outputs:
            raise NativeError(f"logits of {outputs} rows, there is room for {self._n_outputs}")

    def _pass(self, rows: int, start: int) -> None:
        """Decodes the batch; of a failed pass nothing is left from position `start` on."""
        self._batch.n_tokens = rows
        self.threads.before_pass()
        if self.threads.threads != self._n_threads:
            self._n_threads = self.threads.threads
            self._llama.llama_set_n_threads(self.handle, self._n_threads, self._n_threads)
        status = self._llama.llama_decode(self.handle, self._batch)
        self.threads.after_pass()
        fault = self._end_store_pass()
        if status == 0 and fault is None:
            return
        self._remove_from(start)
        if fault is not None:
            raise ModelError(fault, hint="check the disk and the file, then ask again")
        if status == _DECODE_ABORTED:
            raise Cancelled("stopped")
        if status == _DECODE_NO_ROOM:
            raise NativeError(f"no room for {rows} tokens in the KV cache at {start} of {self.n_ctx}")
        raise NativeError(f"decoding failed with status {status}: {log.last() or 'no reason given'}")

    def cut(self, length: int) -> int:
        """Takes the cells from position `length` on away; returns what is left (0 if it cannot be cut)."""
        if self._remove_from(length):
            return length
        self._llama.llama_memory_clear(self._memory, True)
        return 0

    def end_branches(self) -> None:
        """No tree is decoded for a while."""
        if self.branches is not None:
            self.branches.end()

    def close(self) -> None:
        if self.handle is not None:
            self._llama.llama_batch_free(self._batch)
            self._llama.llama_free(self.handle)
            self.handle = None

    def _remove_from(self, position: int) -> bool:
        if self.branches is not None:
            return self.branches.cut(position)
        return bool(self._llama.llama_memory_seq_rm(self._memory, 0, position, -1))

    def _end_store_pass(self) -> str | None:
        """What went wrong with a read during the pass; None when nothing did."""
        if self._store is None:
            return None
        self._store.end_pass()
        return self._store.take_fault()


def _open(bindings: Any, model: Any, info: ModelInfo, plan: Plan, n_outputs: int, sequences: int) -> Any:
    if bindings.llama_model_has_encoder(model) or bindings.llama_model_is_diffusion(model):
        raise ModelError(
            f"{info.path}: {info.arch} is not a model that chats", hint="use a text generation model"
        )
    params = bindings.llama_context_default_params()
    params.n_ctx = plan.n_ctx
    params.n_batch = params.n_ubatch = plan.n_ubatch
    params.n_outputs_max = params.n_outputs_max_per_seq = n_outputs
    params.n_seq_max = sequences
    params.kv_unified = sequences > 1  # they share the cells, each may take all of them
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
