"""Decodes with the bindings alone, stock or ours with nothing switched on; prints a digest of the logits.

Run as a program, because a process can load one of the two libraries.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys

import llama_cpp.llama_cpp as llama

PREFILL, STEPS, N_CTX = 600, 40, 1024


def digests(model_path: str, threads: int) -> list[str]:
    """One for a wide pass over `PREFILL` tokens, then one for each of `STEPS` one-row passes."""
    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, ctypes.c_void_p())
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(model_path.encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = N_CTX, threads, threads
    context = llama.llama_init_from_model(model, params)
    n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    tokens = [(7919 * i) % n_vocab for i in range(PREFILL)]
    found = [_decode(context, tokens, n_vocab)]
    found += [_decode(context, [(104729 * step) % n_vocab], n_vocab) for step in range(STEPS)]
    return found


def _decode(context: object, tokens: list[int], n_vocab: int) -> str:
    array = (llama.llama_token * len(tokens))(*tokens)
    if llama.llama_decode(context, llama.llama_batch_get_one(array, len(tokens))) != 0:
        raise RuntimeError("the pass failed")
    logits = llama.llama_get_logits_ith(context, -1)
    return hashlib.sha256(ctypes.string_at(logits, n_vocab * ctypes.sizeof(ctypes.c_float))).hexdigest()


if __name__ == "__main__":
    print("\n".join(digests(sys.argv[1], int(sys.argv[2]))))
