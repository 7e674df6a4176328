"""llama.cpp as it comes: its own bindings and defaults, nothing of ours.

In our library it is the same with nothing of ours switched on: the gate on stock compares the two bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import llama_cpp.llama_cpp as llama


class Stock:
    """A model whose answers are greedy and never end by themselves.

    `repack` False leaves weights where they are in the mapped file, without a copy in another layout.
    """

    def __init__(self, path: Path, n_ctx: int, threads: int, *, repack: bool = True) -> None:
        self._silent = llama.llama_log_callback(lambda *_: None)
        llama.llama_log_set(self._silent, None)
        llama.llama_backend_init()
        model_params = llama.llama_model_default_params()
        if not repack:
            model_params.use_extra_bufts = False
        model = llama.llama_model_load_from_file(str(path).encode(), model_params)
        if model is None:
            raise RuntimeError(f"{path}: stock llama.cpp cannot load it")
        params = llama.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_threads = params.n_threads_batch = threads
        self._context = llama.llama_init_from_model(model, params)
        self._vocab = llama.llama_model_get_vocab(model)
        self._sampler = self._greedy()

    def tokenize(self, text: str) -> list[int]:
        data = text.encode()
        tokens = (llama.llama_token * (len(data) + 8))()
        count = llama.llama_tokenize(self._vocab, data, len(data), tokens, len(tokens), True, True)
        return list(tokens[:count])

    def prefill(self, prompt: Sequence[int]) -> None:
        """Begins an answer; everything before it is forgotten."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        self.feed(prompt)
        llama.llama_synchronize(self._context)

    def feed(self, tokens: Sequence[int]) -> None:
        array = (llama.llama_token * len(tokens))(*tokens)
        if llama.llama_decode(self._context, llama.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("stock llama.cpp failed to decode")

    def sample(self) -> int:
        """The most likely next token."""
        return int(llama.llama_sampler_sample(self._sampler, self._context, -1))

    def _greedy(self) -> int:
        sampler: int = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        n_vocab = llama.llama_vocab_n_tokens(self._vocab)
        ends = [i for i in range(n_vocab) if llama.llama_vocab_is_eog(self._vocab, i)]
        bias = (llama.llama_logit_bias * len(ends))(*((token, float("-inf")) for token in ends))
        llama.llama_sampler_chain_add(sampler, llama.llama_sampler_init_logit_bias(n_vocab, len(ends), bias))
        llama.llama_sampler_chain_add(sampler, llama.llama_sampler_init_greedy())
        return sampler
