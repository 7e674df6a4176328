"""Model files with stacks of experts of mixed types, in one file or many, and what is in them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize

from engine.experts import Catalogue

EXPERTS, ROWS, COLUMNS = 6, 32, 64
#: Of each layer the types of its gate, up and down.
KINDS = {
    0: (Type.Q4_0, Type.Q4_0, Type.Q8_0),
    1: (Type.Q8_0, Type.Q8_0, Type.F16),
    2: (Type.F32, Type.F32, Type.F32),
    10: (Type.Q4_0, Type.Q8_0, Type.Q4_1),
}


def write_stacks(path: Path, per_file: int = 0, rows: int = ROWS) -> list[Path]:
    """A model that has experts and little else, layers and stacks in no good order; it does not run.

    With `per_file` tensors in each file it becomes a split set.
    """
    writer = gguf.GGUFWriter(path, "olmoe", split_max_tensors=per_file)
    writer.add_block_count(11)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(2)
    random = np.random.default_rng(rows)
    for layer, kinds in reversed(KINDS.items()):
        for name, kind in reversed(list(zip(("gate", "up", "down"), kinds, strict=True))):
            values = random.standard_normal((EXPERTS, rows, COLUMNS)).astype(np.float32)
            writer.add_tensor(f"blk.{layer}.ffn_{name}_exps.weight", quantize(values, kind), raw_dtype=kind)
        writer.add_tensor(f"blk.{layer}.ffn_down_exps.bias", values[:, 0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return [path] if path.exists() else sorted(path.parent.glob(f"{path.stem}-*-of-*.gguf"))


def expert(catalogue: Catalogue, number: int, index: int) -> bytes:
    """The bytes a reader of the catalogue finds for expert `index` of its tensor `number`."""
    tensor = catalogue.tensors[number]
    with catalogue.files[tensor.file].open("rb") as file:
        file.seek(tensor.offset + index * tensor.stride)
        return file.read(tensor.expert_bytes)


def assert_holds(catalogue: Catalogue, *files: Path) -> None:
    """The catalogue leads to every expert the gguf package finds in `files`, and to no other."""
    tensors = [tensor for file in files for tensor in gguf.GGUFReader(file).tensors]
    theirs = {tensor.name: tensor for tensor in tensors if tensor.name.endswith("_exps.weight")}
    assert {tensor.name for tensor in catalogue.tensors} == set(theirs)
    assert catalogue.expert_bytes == sum(tensor.n_bytes for tensor in theirs.values())
    for number, tensor in enumerate(catalogue.tensors):
        data = theirs[tensor.name].data
        assert len(data) == tensor.n_expert
        for index in range(tensor.n_expert):
            assert expert(catalogue, number, index) == data[index].tobytes(), (tensor.name, index)
