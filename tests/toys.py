"""Model files made by the tests: headers byte by byte, and a tiny random model that llama.cpp runs."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import gguf
import numpy as np

from engine.device import Device
from engine.experts import catalogue_of
from engine.model import files_of, read_model_info, stem_of
from engine.need import GROWTH_BYTES, cell_bytes, need_of
from engine.paths import EMBEDDED_MODEL
from engine.plan import UBATCH, Plan, Wishes, make_plan
from engine.session import Session
from engine.timeline import ROWS_EXACT

MACHINE = Device(cores=1, memory_bytes=8 << 30, available_bytes=4 << 30, arch="x86_64")

U8, U32, F32, STRING, ARRAY, U64 = 0, 4, 6, 8, 9, 10


def plan_for(path: Path, **wishes: object) -> Plan:
    settings = {"n_ctx": 512, "n_threads": 1, **wishes}
    return make_plan(MACHINE, read_model_info(path), Wishes(**settings))  # type: ignore[arg-type]


def load(path: Path, **wishes: object) -> Session:
    return Session.load(path, plan_for(path, **wishes))


# --- the model that ships, elsewhere


def copy_embedded(folder: Path, stem: str = "") -> Path:
    """Copies of its files in `folder`, with their dates, under their own name or as `stem`; the first."""
    own = stem_of(EMBEDDED_MODEL)
    for file in files_of(EMBEDDED_MODEL):
        shutil.copy2(file, folder / file.name.replace(own, stem or own, 1))
    return folder / EMBEDDED_MODEL.name.replace(own, stem or own, 1)


def link_embedded(folder: Path) -> Path:
    """Links to its files in `folder`; the first of them."""
    for file in files_of(EMBEDDED_MODEL):
        (folder / file.name).symlink_to(file)
    return folder / EMBEDDED_MODEL.name


def file_of_experts(model: Path) -> Path:
    """The last of the model's files with experts in it, which is read while answers are written."""
    return files_of(model)[catalogue_of(model).tensors[-1].file]


def budget_with(share: float, n_ctx: int) -> int:
    """MiB for an engine with the embedded model and `n_ctx` cells that leave so much room to its experts, of
    what all of them take in slots."""
    info = read_model_info(EMBEDDED_MODEL)
    cell = cell_bytes(info, "f16")
    need = need_of(info, n_ctx=n_ctx, cell_bytes=cell, n_ubatch=UBATCH, n_outputs=ROWS_EXACT)
    return int(need.base + GROWTH_BYTES + share * info.slots_bytes) >> 20


# --- headers, right or wrong


def text(value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + items


def tensor(name: str, dims: tuple[int, ...], kind: int, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def header(
    *pairs: bytes, tensors: tuple[bytes, ...] = (), n_pairs: int | None = None, n_tensors: int | None = None
) -> bytes:
    counts = (len(tensors) if n_tensors is None else n_tensors, len(pairs) if n_pairs is None else n_pairs)
    return b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join((*pairs, *tensors))


def llama_pairs(**numbers: int) -> tuple[bytes, ...]:
    """The least that makes a header one of a language model."""
    values = {"block_count": 2, "context_length": 256, "embedding_length": 64} | numbers
    return (
        pair("general.architecture", STRING, text("llama")),
        *(pair(f"llama.{key}", U32, struct.pack("<I", value)) for key, value in values.items()),
    )


# --- a model that runs

_WIDTH, _LAYERS, _FEED = 32, 2, 64
_WORDS = ("<|im_start|>", "<|im_end|>")
SPACE = "\u2581"  # how this vocabulary writes a space


def write_llama(
    path: Path,
    *,
    template: str | None = None,
    add_bos: bool = True,
    tensors_per_file: int = 0,
    temperature: float | None = None,
) -> Path:
    """A dense model of two layers with random weights and a vocabulary of bytes and single letters.

    With `tensors_per_file` it becomes a split set; the first file's path is returned. `temperature`: what its
    header advises.
    """
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=tensors_per_file)
    writer.add_name("Toy")
    writer.add_block_count(_LAYERS)
    writer.add_context_length(1024)
    writer.add_embedding_length(_WIDTH)
    writer.add_feed_forward_length(_FEED)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(_WIDTH // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    n_vocab = add_vocabulary(writer)
    writer.add_add_bos_token(add_bos)
    if template is not None:
        writer.add_chat_template(template)
    if temperature is not None:
        writer.add_float32("general.sampling.temp", temperature)
    for name, shape in _shapes(n_vocab).items():
        random = np.random.default_rng(len(name))
        writer.add_tensor(name, (random.standard_normal(shape) / 8).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0]


def add_vocabulary(writer: gguf.GGUFWriter, special: tuple[str, ...] = ()) -> int:
    """Bytes, single letters and a few words, then more `special` ones; returns how many."""
    kinds = gguf.TokenType
    rows = [("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)]
    rows += [(f"<0x{byte:02X}>", kinds.BYTE) for byte in range(256)]
    rows += [(word, kinds.CONTROL) for word in _WORDS]
    rows += [(chr(letter), kinds.NORMAL) for letter in range(33, 127)]
    rows += [
        (SPACE, kinds.NORMAL),
        (SPACE + "h", kinds.NORMAL),
        ("hi", kinds.NORMAL),
        (SPACE + "hi", kinds.NORMAL),
    ]
    rows += [(word, kinds.CONTROL) for word in special]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([name for name, _ in rows])
    writer.add_token_scores([-float(len(rows) - no) for no in range(len(rows))])
    writer.add_token_types([int(kind) for _, kind in rows])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    return len(rows)


def _shapes(n_vocab: int) -> dict[str, tuple[int, ...]]:
    square, tall, flat = (_WIDTH, _WIDTH), (_FEED, _WIDTH), (_WIDTH, _FEED)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (n_vocab, _WIDTH)}
    for layer in range(_LAYERS):
        block = f"blk.{layer}."
        shapes |= {block + f"{name}.weight": (_WIDTH,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {block + f"attn_{name}.weight": square for name in ("q", "k", "v", "output")}
        shapes |= {block + f"ffn_{name}.weight": tall for name in ("gate", "up")}
        shapes[block + "ffn_down.weight"] = flat
    return shapes | {"output_norm.weight": (_WIDTH,), "output.weight": (n_vocab, _WIDTH)}
