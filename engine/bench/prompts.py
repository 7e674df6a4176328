"""What benches ask a model: what people ask, worded by the model's own chat template."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from engine.bench.tasks import Prompt
from engine.chat import CHATML, ChatTemplate, Message
from engine.errors import ModelError
from engine.model import read_model_info
from engine.native import llama, log
from engine.vocab import Vocab

WARM_UP = "What should I see in Lisbon if I only have two days and do not like museums?"
MEASURED = (
    (
        "My bread comes out dense and pale. I use 500 g of flour, 350 g of water and let it rise an hour. "
        "What should I change first, and why?"
    ),
    (
        "Write a Python function that reads a log file and returns the ten most frequent error messages. "
        "Lines look like this: 2024-03-01 12:00:07 ERROR disk /dev/sda1 is full"
    ),
    "Explain to a child of eight why the moon sometimes shines by day.",
)


def prompts_of(path: Path, asked: Sequence[Prompt] | None = None) -> list[tuple[int, ...]]:
    """Token ids of WARM_UP and of each in MEASURED, or in `asked`, for the model at `path`; no weights are
    loaded."""
    info, bindings = read_model_info(path), llama()
    params = bindings.llama_model_default_params()
    params.vocab_only = True
    log.clear()
    model = bindings.llama_model_load_from_file(os.fsencode(info.path), params)
    if model is None:
        raise ModelError(f"{path}: {log.last() or 'llama.cpp cannot load it'}")
    try:
        source = bytes(bindings.llama_model_chat_template(model, None) or b"").decode("utf-8", "replace")
        template = ChatTemplate(source or CHATML, Vocab(model))
        questions = (WARM_UP,) if asked is not None else (WARM_UP, *MEASURED)
        talks: list[Sequence[Message]] = [[Message("user", text)] for text in questions]
        talks += [prompt.messages for prompt in asked or ()]
        return [template.tokenize(messages, {}) for messages in talks]
    finally:
        bindings.llama_model_free(model)
