"""What a model is, read from the headers of its files."""

from __future__ import annotations

import math
import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.advice import advised_sampling
from engine.errors import ModelError
from engine.header import Layout, Tensor, Value, read_layout
from engine.quant import quant_of
from engine.shards import check_shards

_SPLIT_NAME = re.compile(r"^(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf$")
_MAX_LAYERS, _MAX_EXPERTS = 512, 1024  # LLAMA_MAX_LAYERS, LLAMA_MAX_EXPERTS
#: A stack of routed experts, one matrix each; `what` is the part of the expert.
EXPERT_STACK = re.compile(r"blk\.(?P<layer>[0-9]{1,4})\.ffn_(?P<what>gate|up|gate_up|down)_exps\.weight")
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model as its header describes it. `size_bytes` counts every file of a split set. `quant`: the name of
    its quantisation.

    `expert_bytes`: the routed experts of all layers, 0 where they are not stacked as GGUF has them now.
    `largest_expert_bytes`: one of them, all its parts, in the layer where they are largest. `tied_bytes`: the
    embedding where it serves as the output too, which a faster layout of the output makes a copy of.
    `slots_bytes`: what all experts take in slots of the expert store. `row_bytes`: what the buffers of a pass
    hold for each of its rows, an estimate; `mask_bytes`: for each row and cell of the KV cache, in F16, twice
    with a sliding window; `output_bytes`: for each row that keeps its logits. `lookup_bytes`: the embedding
    where it is only looked up, a row per token. `sampling`: what the model's authors advise, as fields of a
    Sampling.
    """

    path: Path
    name: str
    arch: str
    size_bytes: int
    n_layer: int
    n_expert: int
    n_expert_used: int
    n_ctx_train: int
    kv_bytes_per_token: int
    quant: str = ""
    expert_bytes: int = 0
    largest_expert_bytes: int = 0
    tied_bytes: int = 0
    slots_bytes: int = 0
    row_bytes: int = 0
    mask_bytes: int = 2
    output_bytes: int = 0
    lookup_bytes: int = 0
    n_weights: int = 0
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_moe(self) -> bool:
        return self.n_expert > 0 and self.n_expert_used > 0


def read_model_info(path: Path) -> ModelInfo:
    """Reads the header of the model at `path`; any file of a split set stands for the set.

    Raises ModelError naming the file and the reason.
    """
    files = files_of(Path(path))
    layouts = [read_layout(file) for file in files]  # all of them: each is checked to be whole
    if len(files) > 1:
        check_shards(files, layouts)
    header = layouts[0].values
    arch = header.get("general.architecture")
    if not isinstance(arch, str) or not arch:
        raise ModelError(f"{files[0]}: no architecture in its header", hint="is this a language model?")
    if _number(header, "split.count", 0) > 1 and len(files) == 1:
        raise ModelError(
            f"{files[0]}: one file of a split set", hint="keep its name NAME-00001-of-0000N.gguf"
        )
    if (kind := header.get("general.type", "model")) != "model":
        raise ModelError(f"{files[0]}: not a model but a part for one: {kind}", hint="give the model itself")
    name = header.get("general.name")
    info = ModelInfo(
        path=files[0],
        name=name if isinstance(name, str) and name.strip() else stem_of(files[0]),
        arch=arch,
        size_bytes=sum(layout.file_bytes for layout in layouts),
        n_layer=_number(header, f"{arch}.block_count", 0),
        n_expert=_number(header, f"{arch}.expert_count", 0),
        n_expert_used=_number(header, f"{arch}.expert_used_count", 0),
        n_ctx_train=_number(header, f"{arch}.context_length", 0),
        kv_bytes_per_token=_kv_bytes_per_token(header, arch),
        row_bytes=_row_bytes(header, arch),
        mask_bytes=4 if _number(header, f"{arch}.attention.sliding_window", 0) > 0 else 2,
        output_bytes=_output_bytes(layouts),
        sampling=advised_sampling(header),
        quant=quant_of(header, (tensor for layout in layouts for tensor in layout.tensors)),
        **_weights(layouts),
    )
    _check_possible(info, header)
    return info


def _check_possible(info: ModelInfo, header: dict[str, Value]) -> None:
    """Refuses figures at which llama.cpp would end the process instead of refusing the file."""
    groups = _number(header, f"{info.arch}.expert_group_count", 0)
    groups_used = _number(header, f"{info.arch}.expert_group_used_count", 0)
    epsilon = header.get(f"{info.arch}.attention.layer_norm_rms_epsilon")
    scaling = header.get(f"{info.arch}.rope.scaling.type")
    if not 0 < info.n_layer <= _MAX_LAYERS:
        reason = f"{info.n_layer} layers, possible are 1 to {_MAX_LAYERS}"
    elif info.n_expert > _MAX_EXPERTS:
        reason = f"{info.n_expert} experts, possible are {_MAX_EXPERTS}"
    elif info.n_expert_used > info.n_expert or (info.n_expert and not info.n_expert_used):
        reason = f"{info.n_expert_used} experts used of {info.n_expert}"
    elif groups and (
        groups >= info.n_expert or (groups > 1 and (info.n_expert % groups or not 0 < groups_used < groups))
    ):
        reason = f"{groups_used} of {groups} groups used for {info.n_expert} experts"
    elif isinstance(epsilon, float) and not epsilon >= 0.0:
        reason = f"an epsilon of {epsilon}"
    elif isinstance(scaling, str) and scaling not in _ROPE_SCALINGS:
        reason = f"rope scaling {scaling!r}"
    else:
        return
    raise ModelError(f"{info.path}: cannot be run, its header says {reason}", hint="fetch it again")


def files_of(path: Path) -> list[Path]:
    """The files of the model that `path` belongs to, in order; each is there."""
    try:
        if not path.exists():
            raise ModelError(f"{path}: no such file", hint="check the path given with -m")
        if not path.is_file():
            raise ModelError(f"{path}: not a file", hint="give the .gguf file itself")
        split = split_of(path)
        if split is None or split[2] < 2:
            return [path]
        stem, _, count = split
        files = [path.with_name(f"{stem}-{no:05d}-of-{count:05d}.gguf") for no in range(1, count + 1)]
        missing = next((file for file in files if not file.is_file()), None)
    except OSError as error:
        raise ModelError(
            f"{error.filename or path}: {error.strerror}", hint="check that you may read it"
        ) from error
    if missing is not None:
        raise ModelError(f"{missing}: missing from its split set of {count}", hint="fetch that file too")
    return files


def split_of(path: Path) -> tuple[str, int, int] | None:
    """Stem, number and count of a split set's file, by its name; None for a model of one file."""
    match = _SPLIT_NAME.match(path.name)
    return (match["stem"], int(match["no"]), int(match["count"])) if match is not None else None


def stem_of(path: Path) -> str:
    """The name of the model's file without its ending; that of a split set without the file's number."""
    match = _SPLIT_NAME.match(path.name)
    return match["stem"] if match is not None else path.stem


def _number(header: dict[str, Value], key: str, default: int) -> int:
    """A count; the largest where layers differ. What is not a count stands as if it were absent."""
    value = header.get(key)
    items = value if isinstance(value, tuple) else (value,)
    return max((item for item in items if isinstance(item, int) and item >= 0), default=default)


def _kv_bytes_per_token(header: dict[str, Value], arch: str) -> int:
    """Bytes one token takes in an F16 KV cache, all layers; a sliding window is kept whole too."""
    n_head = max(1, _number(header, f"{arch}.attention.head_count", 1))
    heads_kv = header.get(f"{arch}.attention.head_count_kv")
    by_layer = [count for count in heads_kv if isinstance(count, int)] if isinstance(heads_kv, tuple) else []
    if by_layer:  # a layer without heads keeps a state instead
        n_heads_kv = sum(max(0, count) for count in by_layer)
    else:
        n_head_kv = _number(header, f"{arch}.attention.head_count_kv", n_head)
        n_heads_kv = n_head_kv * _number(header, f"{arch}.block_count", 0)
    head = _number(header, f"{arch}.embedding_length", 0) // n_head
    keys = _number(header, f"{arch}.attention.key_length", head)
    values = _number(header, f"{arch}.attention.value_length", head)
    if f"{arch}.attention.key_length_mla" in header:  # latent attention: the values are a part of the keys
        values = 0
    return 2 * n_heads_kv * (keys + values)


def _weights(layouts: Sequence[Layout]) -> dict[str, int]:
    """How the bytes of the weights are spread."""
    tensors = {tensor.name: tensor for layout in layouts for tensor in layout.tensors}
    stacks = [(match["layer"], tensor) for name, tensor in tensors.items() if (match := _stack(tensor, name))]
    by_layer: dict[str, int] = {}
    for layer, tensor in stacks:
        by_layer[layer] = by_layer.get(layer, 0) + tensor.size // tensor.dims[2]
    tied = "token_embd.weight" in tensors and "output.weight" not in tensors
    untied = "token_embd.weight" in tensors and not tied
    return {
        "expert_bytes": sum(tensor.size for _, tensor in stacks),
        "slots_bytes": sum(
            tensor.dims[2] * slot_bytes(tensor.size // tensor.dims[2]) for _, tensor in stacks
        ),
        "largest_expert_bytes": max(by_layer.values(), default=0),
        "tied_bytes": tensors["token_embd.weight"].size if tied else 0,
        "lookup_bytes": tensors["token_embd.weight"].size if untied else 0,
        "n_weights": sum(math.prod(tensor.dims) for tensor in tensors.values()),
    }


def _stack(tensor: Tensor, name: str) -> re.Match[str] | None:
    return EXPERT_STACK.fullmatch(name) if len(tensor.dims) == 3 and tensor.dims[2] else None


def row_bytes(width: int, used: int, expert: int, dense: int = 0) -> int:
    """F32 results of a layer of `width` numbers that live at the same time, for a row that goes through
    `used` experts of `expert` neurons each or through `dense` ones, and the 8-bit form in which they are
    multiplied.

    Measured on the buffers that llama.cpp sets aside; right to a few percent where experts are wide.
    """
    return 4 * (max(width * used, 3 * expert * used, 3 * dense) + 5 * width) + max(expert * used, dense)


def _row_bytes(header: dict[str, Value], arch: str) -> int:
    names = ("embedding_length", "expert_used_count", "expert_feed_forward_length", "feed_forward_length")
    return row_bytes(*(_number(header, f"{arch}.{name}", 0) for name in names))


def slot_bytes(part: int) -> int:
    """What the expert store sets aside for a `part` of an expert: whole pages, and one behind them."""
    return -(-part // mmap.PAGESIZE) * mmap.PAGESIZE + mmap.PAGESIZE


def _output_bytes(layouts: Sequence[Layout]) -> int:
    """Logits, in the buffers of the pass and where they are read."""
    embedding = (
        tensor for layout in layouts for tensor in layout.tensors if tensor.name == "token_embd.weight"
    )
    return 2 * 4 * max((tensor.dims[1] for tensor in embedding if len(tensor.dims) == 2), default=0)
