"""Tiny random models of the MoE families llama.cpp knows, written as the converters would write them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from toys import add_vocabulary

Shape = tuple[int, ...]  # as numpy has it: rows first
Key = int | float | bool | list[int] | list[bool]
Array = npt.NDArray[np.float32]

WIDTH, HEAD, HEADS, DENSE_FEED = 64, 32, 2, 96
EXPERTS, USED, FEED = 16, 4, 32
LATENT, ROPE = 32, 32  # of latent attention (MLA): what the cache holds of a token, and its rotated part
WINDOW = 64

SIGMOID = 2  # of llama_expert_gating_func_type
GAINS = {"token_embd.weight": 8.0, "output.weight": 3.0}


@dataclass(frozen=True)
class Family:
    """What makes a family: the keys of its header and the tensors of a layer.

    `whole`: tensors of the model as a whole. `dense` layers at the front have a plain feed-forward part.
    `attending`: the layers that attend, None for all; the others have `mixer` instead, and keep a state.
    `normalises`: the weights of the chosen experts are made to sum to one. `alike`: a layer's experts are
    copies of one. `experts` and `others` are the types of the matrices, `mixed` those of single ones.
    """

    arch: str
    attention: Mapping[str, Shape]
    feed: Mapping[str, Shape]
    keys: Mapping[str, Key] = field(default_factory=dict)
    layers: int = 3
    dense: int = 0
    normalises: bool = False
    alike: bool = False
    experts: Type = Type.Q8_0
    others: Type = Type.F16
    mixed: Mapping[str, Type] = field(default_factory=dict)
    attending: tuple[int, ...] | None = None
    mixer: Mapping[str, Shape] = field(default_factory=dict)
    last_norm: str = "output_norm"
    whole: Mapping[str, Shape] = field(default_factory=dict)

    @property
    def is_moe(self) -> bool:
        return "ffn_gate_inp.weight" in self.feed

    @property
    def moe_layers(self) -> list[int]:
        return list(range(self.dense, self.layers))


def plain(head: int = HEAD, heads_kv: int = HEADS) -> dict[str, Shape]:
    """Queries, keys and values of their own."""
    return {
        "attn_q.weight": (HEADS * head, WIDTH),
        "attn_k.weight": (heads_kv * head, WIDTH),
        "attn_v.weight": (heads_kv * head, WIDTH),
        "attn_output.weight": (WIDTH, HEADS * head),
    }


def normed(width: int) -> dict[str, Shape]:
    return {"attn_q_norm.weight": (width,), "attn_k_norm.weight": (width,)}


def biased(tensors: Mapping[str, Shape]) -> dict[str, Shape]:
    """The biases of `tensors`: one number per row of each."""
    return {name.replace("weight", "bias"): shape[:-1] for name, shape in tensors.items()}


LATENT_ATTENTION: dict[str, Shape] = {
    "attn_q_a.weight": (32, WIDTH),
    "attn_q_a_norm.weight": (32,),
    "attn_q_b.weight": (HEADS * (HEAD + ROPE), 32),
    "attn_kv_a_mqa.weight": (LATENT + ROPE, WIDTH),
    "attn_kv_a_norm.weight": (LATENT,),
    "attn_k_b.weight": (HEADS, LATENT, HEAD),
    "attn_v_b.weight": (HEADS, HEAD, LATENT),
    "attn_output.weight": (WIDTH, HEADS * HEAD),
}
LATENT_KEYS: dict[str, Key] = {
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": LATENT,
    "attention.key_length": LATENT + ROPE,
    "attention.value_length": LATENT,
    "attention.key_length_mla": HEAD + ROPE,
    "attention.value_length_mla": HEAD,
    "rope.dimension_count": ROPE,
    "expert_shared_count": 1,
}
WINDOWED: dict[str, Key] = {
    "attention.sliding_window": WINDOW,
    "attention.sliding_window_pattern": [True, True, False],
}

ROUTER: dict[str, Shape] = {"ffn_gate_inp.weight": (EXPERTS, WIDTH)}
DOWN: dict[str, Shape] = {"ffn_down_exps.weight": (EXPERTS, WIDTH, FEED)}
SPLIT: dict[str, Shape] = {
    **{f"ffn_{name}_exps.weight": (EXPERTS, FEED, WIDTH) for name in ("gate", "up")},
    **DOWN,
}
FUSED: dict[str, Shape] = {"ffn_gate_up_exps.weight": (EXPERTS, 2 * FEED, WIDTH)} | DOWN
SHARED: dict[str, Shape] = {f"ffn_{name}_shexp.weight": (FEED, WIDTH) for name in ("gate", "up")} | {
    "ffn_down_shexp.weight": (WIDTH, FEED)
}
DENSE: dict[str, Shape] = {f"ffn_{name}.weight": (DENSE_FEED, WIDTH) for name in ("gate", "up")} | {
    "ffn_down.weight": (WIDTH, DENSE_FEED)
}
CORRECTION: dict[str, Shape] = {"exp_probs_b.bias": (EXPERTS,)}
SINKS: dict[str, Shape] = {"attn_sinks.weight": (HEADS,)}

STATE, INNER, RANK = 16, 2 * WIDTH, 8
MIXER: dict[str, Shape] = {  # of Mamba
    "ssm_in.weight": (2 * INNER, WIDTH),
    "ssm_conv1d.weight": (INNER, 4),
    "ssm_conv1d.bias": (INNER,),
    "ssm_x.weight": (RANK + 2 * STATE, INNER),
    "ssm_dt.weight": (INNER, RANK),
    "ssm_dt.bias": (INNER,),
    "ssm_a": (INNER, STATE),
    "ssm_d": (INNER,),
    "ssm_out.weight": (WIDTH, INNER),
}
MIXER_NORMS: dict[str, Shape] = {
    "ssm_dt_norm.weight": (RANK,),
    "ssm_b_norm.weight": (STATE,),
    "ssm_c_norm.weight": (STATE,),
}
CONVOLUTION: dict[str, Shape] = {
    "shortconv.conv.weight": (WIDTH, 3),
    "shortconv.in_proj.weight": (3 * WIDTH, WIDTH),
    "shortconv.out_proj.weight": (WIDTH, WIDTH),
}
MIXER_KEYS: dict[str, Key] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": INNER,
    "ssm.state_size": STATE,
    "ssm.time_step_rank": RANK,
}

FAMILIES = {
    "olmoe": Family(
        "olmoe",
        plain() | {"attn_q_norm.weight": (HEADS * HEAD,), "attn_k_norm.weight": (HEADS * HEAD,)},
        ROUTER | SPLIT,
        {"feed_forward_length": FEED},
        experts=Type.Q4_0,
    ),
    "qwen2moe": Family(
        "qwen2moe",
        plain() | {f"attn_{name}.bias": (HEADS * HEAD,) for name in "qkv"},
        ROUTER | SPLIT | SHARED | {"ffn_gate_inp_shexp.weight": (WIDTH,)},
        {"expert_shared_feed_forward_length": FEED},
        others=Type.Q4_0,
    ),
    "qwen3moe": Family(
        "qwen3moe",
        plain(64, 1) | normed(64),
        ROUTER | SPLIT,
        {"attention.head_count_kv": 1, "attention.key_length": 64, "attention.value_length": 64},
        normalises=True,
        others=Type.Q8_0,
    ),
    "qwen3moe-mixed": Family(  # as quantisers mix types: by layer, and `down` finer than the others
        "qwen3moe",
        plain(64, 1) | normed(64),
        ROUTER | SPLIT,
        {"attention.head_count_kv": 1, "attention.key_length": 64, "attention.value_length": 64},
        normalises=True,
        experts=Type.Q4_0,
        mixed={
            "blk.0.ffn_down_exps.weight": Type.Q8_0,
            "blk.1.ffn_gate_exps.weight": Type.MXFP4,
            "blk.1.ffn_down_exps.weight": Type.F16,
            "blk.2.ffn_up_exps.weight": Type.Q8_0,
        },
    ),
    "deepseek": Family(
        "deepseek",
        plain(),
        ROUTER | SPLIT | SHARED,
        {"expert_shared_count": 1, "leading_dense_block_count": 1},
        dense=1,
        experts=Type.F16,
    ),
    "deepseek2": Family(
        "deepseek2",
        LATENT_ATTENTION,
        ROUTER | SPLIT | SHARED,
        LATENT_KEYS | {"leading_dense_block_count": 1, "expert_weights_scale": 1.5},
        dense=1,
        others=Type.Q8_0,
    ),
    "deepseek2-unsplit": Family(
        "deepseek2",
        {name: shape for name, shape in LATENT_ATTENTION.items() if "_k_b" not in name and "_v_b" not in name}
        | {"attn_kv_b.weight": (HEADS * 2 * HEAD, LATENT)},
        ROUTER | SPLIT | SHARED,
        {name: value for name, value in LATENT_KEYS.items() if "_mla" not in name}
        | {
            "attention.head_count_kv": HEADS,
            "attention.key_length": HEAD + ROPE,
            "attention.value_length": HEAD,
        },
    ),
    "deepseek3": Family(
        "deepseek2",
        LATENT_ATTENTION,
        ROUTER | SPLIT | SHARED | CORRECTION,
        LATENT_KEYS
        | {
            "leading_dense_block_count": 1,
            "expert_weights_scale": 2.5,
            "expert_weights_norm": True,
            "expert_gating_func": SIGMOID,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
        },
        dense=1,
        normalises=True,
        experts=Type.Q4_0,
    ),
    "deepseek2-fused": Family(
        "deepseek2",
        LATENT_ATTENTION,
        ROUTER | FUSED | SHARED,
        LATENT_KEYS,
        experts=Type.Q4_0,
    ),
    "gpt-oss": Family(
        "gpt-oss",
        {**plain(), **biased(plain()), **SINKS},
        ROUTER | SPLIT | biased(ROUTER | SPLIT),
        WINDOWED,
        normalises=True,
        experts=Type.MXFP4,
        others=Type.Q8_0,
    ),
    "granite-swa": Family(
        "granite_swa",
        plain() | SINKS,
        ROUTER | FUSED,
        WINDOWED | {"logit_scale": 1.0, "feed_forward_length": FEED},
        normalises=True,
    ),
    "gemma4": Family(
        "gemma4",
        plain() | normed(HEAD) | {"post_attention_norm.weight": (WIDTH,)},
        ROUTER
        | FUSED
        | DENSE
        | {"ffn_gate_inp.scale": (WIDTH,), "ffn_down_exps.scale": (EXPERTS,)}
        | {f"{name}.weight": (WIDTH,) for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")}
        | {"post_ffw_norm.weight": (WIDTH,)},
        WINDOWED
        | {
            "embedding_length_per_layer_input": 0,
            "attention.key_length_swa": HEAD,
            "attention.value_length_swa": HEAD,
        },
        normalises=True,
        whole={"rope_freqs.weight": (HEAD // 2,)},
    ),
    "llama4": Family(
        "llama4",
        plain(),
        ROUTER | SPLIT | SHARED,
        {"interleave_moe_layer_step": 1, "attention.sliding_window": 8192},
        layers=4,  # the fourth is the one without positions
        normalises=True,  # as good as: its weights go to the inputs of the experts
    ),
    "mellum": Family(
        "mellum",
        plain() | normed(HEAD),
        ROUTER | SPLIT,
        WINDOWED,
        normalises=True,
        experts=Type.F32,
        others=Type.F32,
    ),
}
#: These keep a state that cannot be rolled back.
STATEFUL = {
    "mamba": Family("mamba", {}, {}, MIXER_KEYS, attending=(), mixer=MIXER),
    "lfm2moe": Family(
        "lfm2moe",
        plain() | normed(HEAD),
        ROUTER | SPLIT | CORRECTION,
        {
            "attention.head_count_kv": [0, HEADS, 0],
            "expert_gating_func": SIGMOID,
            "leading_dense_block_count": 1,
            "shortconv.l_cache": 3,
        },
        dense=1,
        attending=(1,),
        mixer=CONVOLUTION,
        last_norm="token_embd_norm",
    ),
    "jamba": Family(
        "jamba",
        plain(),
        ROUTER | SPLIT,
        MIXER_KEYS | {"attention.head_count_kv": [0, HEADS, 0], "feed_forward_length": FEED},
        attending=(1,),
        mixer=MIXER | MIXER_NORMS,
    ),
}


def write_family(
    path: Path,
    family: Family,
    tensors_per_file: int = 0,
    *,
    special: tuple[str, ...] = (),
    template: str | None = None,
) -> Path:
    """A model of `family` with random weights, `special` tokens besides and a chat `template`.

    With `tensors_per_file` it becomes a split set; the first file's path is returned.
    """
    writer = gguf.GGUFWriter(path, family.arch, split_max_tensors=tensors_per_file)
    n_vocab = add_vocabulary(writer, special)
    if template is not None:
        writer.add_chat_template(template)
        writer.add_add_space_prefix(False)  # as vocabularies of models that chat have it
    for key, value in (_common(family) | dict(family.keys)).items():
        _add_key(writer, f"{family.arch}.{key}", value)
    for name, shape in _tensors(family, n_vocab):
        _add_tensor(writer, name, shape, family)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if path.exists() else sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0]


def weights(path: Path, name: str) -> Array:
    """The tensor `name` of the model at `path`, as numbers."""
    tensor = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)


def _common(family: Family) -> dict[str, Key]:
    keys: dict[str, Key] = {
        "block_count": family.layers,
        "context_length": 4096,
        "embedding_length": WIDTH,
        "feed_forward_length": DENSE_FEED,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    if family.attending != ():
        keys |= {"attention.head_count": HEADS, "attention.head_count_kv": HEADS}
    if family.is_moe:
        keys |= {"expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": FEED}
    return keys


def _add_key(writer: gguf.GGUFWriter, key: str, value: Key) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_float32(key, value)


def _tensors(family: Family, n_vocab: int) -> Iterator[tuple[str, Shape]]:
    yield "token_embd.weight", (n_vocab, WIDTH)
    yield from family.whole.items()
    second_norm = "post_attention_norm" if family.arch == "gpt-oss" else "ffn_norm"
    for layer in range(family.layers):
        attends = family.attending is None or layer in family.attending
        parts = dict(family.attention if attends else family.mixer)
        parts |= DENSE if layer < family.dense else family.feed
        parts |= {"attn_norm.weight": (WIDTH,)} | ({f"{second_norm}.weight": (WIDTH,)} if family.feed else {})
        yield from ((f"blk.{layer}.{name}", shape) for name, shape in parts.items())
    yield f"{family.last_norm}.weight", (WIDTH,)
    yield "output.weight", (n_vocab, WIDTH)


def _add_tensor(writer: gguf.GGUFWriter, name: str, shape: Shape, family: Family) -> None:
    values = _random(name, shape)
    if family.alike and "_exps" in name:
        values[:] = values[0]
    if len(shape) == 1 or any(part in name for part in ("ffn_gate_inp", "bias", "ssm_", "norm", "conv.")):
        kind = Type.F32
    else:
        kind = family.mixed.get(name, family.experts if "_exps" in name else family.others)
    writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def _random(name: str, shape: Shape) -> Array:
    """Numbers that keep the signal's size through the layers, and routing and text lively."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    normal = random.standard_normal(shape)
    if any(part in name for part in ("norm", "scale", "rope")):
        values = 1 + normal / 10
    elif name.endswith("ssm_a"):
        values = -np.exp(normal / 2)  # a state decays
    elif len(shape) == 1 or "bias" in name:
        values = normal / 4
    else:
        gain = GAINS.get(name, 0.7 if "exps" in name else 1.0)
        values = normal * gain / np.sqrt(shape[-1])
    return values.astype(np.float32)
