"""Writes the model as GGUF: the teacher's own blocks where nothing was trained, Q4_0 where it was."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from training import blocks
from training.geometry import LIMIT_FILE, N_LAYER, Geometry
from training.stored import Stored

Array = npt.NDArray[np.generic]
_ARCH = "deepseek"
_ROOM = 1_000_000  # bytes below the limit of a file, for what a header grows by


def write(
    teacher: Path,
    layers: Sequence[dict[str, npt.NDArray[np.float32]]],
    geometry: Geometry,
    scale: float,
    folder: Path,
    name: str,
    limit: int = LIMIT_FILE,
) -> list[Path]:
    """Writes NAME.gguf into `folder`, or NAME-00001-of-0000N.gguf where one file would be over `limit` bytes.

    `layers` hold F32 arrays named as in `student.Moe`. Returns the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for old in [folder / f"{name}.gguf", *folder.glob(f"{name}-*-of-*.gguf")]:
        old.unlink(missing_ok=True)
    tensors = list(_tensors(Stored(teacher), layers, geometry))
    whole = sum(data.nbytes for _, data, _ in tensors) < limit - 3 * _ROOM  # and the vocabulary
    writer = gguf.GGUFWriter(folder / f"{name}.gguf", _ARCH, split_max_size=0 if whole else limit - 3 * _ROOM)
    _header(writer, teacher, geometry, scale, name)
    for tensor, data, kind in tensors:
        writer.add_tensor(tensor, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{name}*.gguf"))


def _header(writer: gguf.GGUFWriter, teacher: Path, geometry: Geometry, scale: float, name: str) -> None:
    reader = gguf.GGUFReader(teacher)
    for key, value in reader.fields.items():
        if key.startswith("tokenizer."):
            kind = value.types[0]
            sub = value.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, value.contents(), kind, sub_type=sub)
    writer.add_name(name.replace("smolmoe", "SmolMoE"))
    writer.add_license("apache-2.0")
    writer.add_description("Cut into experts and distilled from SmolLM2-135M-Instruct")
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)

    def own(key: str) -> int | float:
        found = reader.fields[f"llama.{key}"].contents()
        assert isinstance(found, (int, float))
        return found

    writer.add_block_count(N_LAYER)
    writer.add_context_length(int(own("context_length")))
    writer.add_embedding_length(int(own("embedding_length")))
    writer.add_feed_forward_length(int(own("feed_forward_length")))
    writer.add_head_count(int(own("attention.head_count")))
    writer.add_head_count_kv(int(own("attention.head_count_kv")))
    writer.add_rope_freq_base(float(own("rope.freq_base")))
    writer.add_rope_dimension_count(int(own("rope.dimension_count")))
    writer.add_layer_norm_rms_eps(float(own("attention.layer_norm_rms_epsilon")))
    writer.add_vocab_size(int(own("vocab_size")))
    writer.add_expert_count(geometry.experts)
    writer.add_expert_used_count(geometry.used)
    writer.add_expert_feed_forward_length(geometry.width)
    writer.add_expert_shared_count(geometry.shared_count)
    writer.add_expert_weights_scale(scale)
    writer.add_leading_dense_block_count(geometry.dense)


def _tensors(
    teacher: Stored, layers: Sequence[dict[str, npt.NDArray[np.float32]]], geometry: Geometry
) -> Iterator[tuple[str, Array, gguf.GGMLQuantizationType]]:
    """Name, data and type of every tensor."""
    for name in teacher.tensors:
        layer = re.match(r"blk\.(\d+)\.ffn_(gate|up|down)\.", name)
        if layer and int(layer[1]) >= geometry.dense:
            continue
        if name == "token_embd.weight" and geometry.embedding != "copy":
            kind = gguf.GGMLQuantizationType[geometry.embedding]
            yield name, gguf.quantize(teacher.values(name), kind), kind
            continue
        kind, raw = teacher.kind(name), np.ascontiguousarray(teacher.raw(name))
        yield name, raw.view(np.float32) if kind == gguf.GGMLQuantizationType.F32 else raw, kind
    for index, moe in zip(geometry.moe_layers, layers, strict=True):
        at, width, shared = f"blk.{index}.ffn_", geometry.width, geometry.shared
        matrices = {
            "gate_exps": moe["gate_up"][:, :width],
            "up_exps": moe["gate_up"][:, width:],
            "down_exps": moe["down"],
            "gate_shexp": moe["shared_gate_up"][:shared],
            "up_shexp": moe["shared_gate_up"][shared:],
            "down_shexp": moe["shared_down"],
        }
        yield f"{at}gate_inp.weight", moe["router"], gguf.GGMLQuantizationType.F32
        for part, values in matrices.items():
            if part == "down_exps" and geometry.down == "F16":
                yield f"{at}{part}.weight", values.astype(np.float16), gguf.GGMLQuantizationType.F16
            else:
                yield f"{at}{part}.weight", blocks.encode(values), gguf.GGMLQuantizationType.Q4_0
