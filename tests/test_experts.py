"""Where the experts of a model lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from families import FAMILIES, write_family
from stacks import KINDS, assert_holds, write_stacks
from toys import header, llama_pairs, tensor, write_llama

from engine.errors import ModelError
from engine.experts import catalogue_of
from engine.header import read_layout
from engine.model import files_of, read_model_info
from engine.paths import EMBEDDED_MODEL


def test_the_embedded_model() -> None:
    catalogue, info = catalogue_of(EMBEDDED_MODEL), read_model_info(EMBEDDED_MODEL)
    dense = read_layout(EMBEDDED_MODEL).values[f"{info.arch}.leading_dense_block_count"]
    assert isinstance(dense, int)
    layers, files = range(dense, info.n_layer), files_of(EMBEDDED_MODEL)
    assert (catalogue.n_layers, catalogue.n_expert) == (len(layers), info.n_expert)
    assert catalogue.files == tuple(files)
    assert [stack.name for stack in catalogue.tensors] == [
        f"blk.{layer}.ffn_{name}_exps.weight" for layer in layers for name in ("gate", "up", "down")
    ]
    assert_holds(catalogue, *files)


@pytest.mark.parametrize("name", ["olmoe", "deepseek2-fused", "gpt-oss", "gemma4", "mellum"])
def test_families(name: str, tmp_path: Path) -> None:
    """With biases and scales beside the stacks, fused ones, and layers without experts."""
    family = FAMILIES[name]
    path = write_family(tmp_path / "model.gguf", family)
    catalogue = catalogue_of(path)
    fused = "ffn_gate_up_exps.weight" in family.feed
    names = ("gate_up", "down") if fused else ("gate", "up", "down")
    assert [(stack.layer, stack.name) for stack in catalogue.tensors] == [
        (layer, f"blk.{layer}.ffn_{name}_exps.weight") for layer in family.moe_layers for name in names
    ]
    assert_holds(catalogue, path)


def test_a_dense_model_has_none(tmp_path: Path) -> None:
    catalogue = catalogue_of(write_llama(tmp_path / "dense.gguf"))
    assert (catalogue.tensors, catalogue.expert_bytes) == ((), 0)
    assert (catalogue.n_layers, catalogue.n_expert) == (0, 0)


@pytest.mark.parametrize("per_file", [0, 1, 2, 5])
def test_split_sets_and_types_that_differ(per_file: int, tmp_path: Path) -> None:
    """With a few tensors in each file the stacks of a layer lie in several."""
    files = write_stacks(tmp_path / "model.gguf", per_file)
    assert len(files) == (1 if not per_file else -(-4 * len(KINDS) // per_file))
    for given in (files[0], files[-1]):
        catalogue = catalogue_of(given)
        assert catalogue.files == tuple(files)
        assert [(stack.layer, stack.name.split("_")[1]) for stack in catalogue.tensors] == [
            (layer, name) for layer in KINDS for name in ("gate", "up", "down")
        ]
        assert_holds(catalogue, *files)
    sizes = [stack.expert_bytes for stack in catalogue.tensors]
    assert len(set(sizes)) > 3
    assert all(stack.stride == stack.expert_bytes for stack in catalogue.tensors)


def test_a_set_with_a_missing_file_is_refused(tmp_path: Path) -> None:
    files = write_stacks(tmp_path / "model.gguf", 3)
    files[2].unlink()
    with pytest.raises(ModelError, match=r"00003-of-.*missing"):
        catalogue_of(files[0])


def written(path: Path, *tensors: bytes) -> Path:
    path.write_bytes(header(*llama_pairs(), tensors=tensors).ljust(1 << 16, b"\0"))
    return path


def test_stacks_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    gate, up = "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"
    uneven = written(tmp_path / "uneven.gguf", tensor(gate, (32, 4, 4), 0), tensor(up, (32, 4, 3), 0))
    with pytest.raises(ModelError, match=r"uneven.gguf: damaged, blk.0.ffn_up.* has 3 experts.* 4"):
        catalogue_of(uneven)
    with pytest.raises(ModelError, match="twice"):
        catalogue_of(written(tmp_path / "double.gguf", *2 * [tensor(gate, (32, 4, 4), 0)]))
    for dims in ((32, 4, 0), (32, 0, 4)):
        with pytest.raises(ModelError, match="damaged"):
            catalogue_of(written(tmp_path / "empty.gguf", tensor(gate, dims, 0)))


def test_other_names_and_shapes_are_no_stacks(tmp_path: Path) -> None:
    names = ("blk.0.ffn_gate_exps.bias", "blk.0.ffn_gate.weight", "xblk.0.ffn_gate_exps.weight")
    others = [tensor(name, (32, 4, 4), 0) for name in (*names, "blk.0.ffn_gate_shexp.weight")]
    flat = tensor("blk.0.ffn_up_exps.weight", (32, 16), 0)
    assert catalogue_of(written(tmp_path / "model.gguf", *others, flat)).tensors == ()
