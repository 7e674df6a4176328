"""Prompts and texts as token ids, with the engine's own vocabulary: runs in the checkout's .venv.

python -m training.tokenise TEACHER.gguf OUT.json SITE-PACKAGES... --seed 0 --characters 1300000
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

from engine.native import llama
from engine.vocab import Vocab
from training.corpus import texts
from training.prompts import Prompt, prompts

_OWN_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"  # the template's
_ANSWER = "<|im_start|>assistant\n"
_PIECE = 384  # tokens of a text at most


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("teacher", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--characters", type=int, default=1_300_000)
    parser.add_argument("folders", type=Path, nargs="*")
    args = parser.parse_args()
    vocab = _vocab(args.teacher)
    pieces, sources = texts(args.folders, args.characters)
    Random(args.seed).shuffle(pieces)
    found = {
        "talks": [_talk(vocab, prompt) for prompt in prompts(args.seed)],
        "texts": [{"ids": ids[:_PIECE], "held_out": held_out} for text, held_out in pieces
                  if len(ids := vocab.tokenize(text, add_special=False, parse_special=False)) >= 48],
        "sources": [source.as_dict() for source in sources],
    }  # fmt: skip
    part = args.out.with_name(args.out.name + ".part")
    part.write_text(json.dumps(found), encoding="utf-8")
    part.replace(args.out)


def _vocab(path: Path) -> Vocab:
    bindings = llama()
    params = bindings.llama_model_default_params()
    params.vocab_only = True
    model = bindings.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise SystemExit(f"{path}: no vocabulary could be loaded")
    return Vocab(model)


def _talk(vocab: Vocab, prompt: Prompt) -> dict[str, object]:
    """`turns`: the ids that stand before each answer, and how many at their head are the system's turn."""
    return {
        "turns": list(_turns(vocab, prompt)),
        "temperature": prompt.temperature,
        "held_out": prompt.held_out,
        "text": prompt.turns[0],
    }


def _turns(vocab: Vocab, prompt: Prompt) -> Iterator[tuple[list[int], int]]:
    system = {"own": _OWN_SYSTEM, "none": ""}.get(prompt.system, prompt.system)
    for number, said in enumerate(prompt.turns):
        head = (
            f"<|im_start|>system\n{system}<|im_end|>\n" if system and not number else "\n" if number else ""
        )
        frame = vocab.tokenize(head, add_special=False, parse_special=True) if head else []
        turn = vocab.tokenize(
            f"<|im_start|>user\n{said}<|im_end|>\n{_ANSWER}", add_special=False, parse_special=True
        )
        yield [*frame, *turn], len(frame)


if __name__ == "__main__":
    main()
