"""The training folder where it needs no PyTorch: prompts, rounding, files in parts, figures of routing."""

from __future__ import annotations

from email.parser import HeaderParser
from pathlib import Path

import gguf
import numpy as np
import pytest
from training import blocks, export
from training.answers import loops, questions
from training.card import Figure, table
from training.corpus import licence_of
from training.figures import Run, hits, read_trace, reuse, shares
from training.geometry import DEFAULT, GEOMETRIES, LIMIT_ALL, N_EMBD, N_FF, N_LAYER, N_VOCAB, Geometry
from training.prompts import by_hand, prompts
from training.shelf import ASSISTANT, FRAME, TOP, USER, Reader, Shelf

from engine.header import read_layout
from engine.model import read_model_info


def test_prompts_are_many_and_distinct() -> None:
    found = prompts(seed=0)
    said = [prompt.turns for prompt in found]
    assert len(said) == len(set(said)) >= 6000
    assert len(by_hand()) >= 300
    assert all(turn.strip() for turns in said for turn in turns)
    assert sum(len(turns) > 1 for turns in said) > 1000
    assert {prompt.system for prompt in found} >= {"own", "none"}


def test_prompts_hang_on_the_seed_alone() -> None:
    assert prompts(seed=3) == prompts(seed=3)
    assert prompts(seed=3) != prompts(seed=4)


def test_held_out_prompts_share_no_first_turn_with_the_others() -> None:
    found = prompts(seed=0)
    held_out = {prompt.turns[0].casefold() for prompt in found if prompt.held_out}
    assert 150 < len(held_out) < 400
    assert not held_out & {prompt.turns[0].casefold() for prompt in found if not prompt.held_out}


def test_rounding_is_that_of_the_gguf_package() -> None:
    values = np.random.default_rng(0).standard_normal((512, 96)).astype(np.float32)
    values[0] = 0.0
    values[1] = np.round(values[1] * 2) / 2  # equal sizes of either sign
    values[2, :2] = 4.0, -4.0
    expected = gguf.quantize(values, gguf.GGMLQuantizationType.Q4_0)
    assert (blocks.encode(values) == expected).all()
    assert (blocks.decode(expected) == gguf.dequantize(expected, gguf.GGMLQuantizationType.Q4_0)).all()


@pytest.mark.parametrize("name", [DEFAULT, "64x32-s384", "48x32-copy"])
def test_geometries_that_may_ship_keep_the_limit(name: str) -> None:
    assert GEOMETRIES[name].file_bytes < LIMIT_ALL


def test_a_model_over_the_limit_of_a_file_becomes_a_set(tmp_path: Path) -> None:
    teacher, geometry = tmp_path / "teacher.gguf", Geometry("toy", 4, 2, 32, 64, 29, embedding="copy")
    _toy_teacher(teacher)
    random = np.random.default_rng(0)
    shapes = {
        "router": (4, N_EMBD), "gate_up": (4, 64, N_EMBD), "down": (4, N_EMBD, 32),
        "shared_gate_up": (128, N_EMBD), "shared_down": (N_EMBD, 64),
    }  # fmt: skip
    layer = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    whole = export.write(teacher, [layer], geometry, 4.0, tmp_path / "whole", "toy")
    parts = export.write(teacher, [layer], geometry, 4.0, tmp_path / "parts", "toy", limit=34_500_000)
    assert [path.name for path in whole] == ["toy.gguf"]
    assert len(parts) > 1
    assert all(path.stat().st_size < 34_500_000 for path in parts)
    assert parts[0].name == f"toy-00001-of-{len(parts):05d}.gguf"
    one, set_of = read_model_info(whole[0]), read_model_info(parts[0])
    assert (one.arch, one.n_expert, one.n_expert_used) == ("deepseek", 4, 2)
    assert (set_of.n_expert, set_of.n_layer) == (4, N_LAYER)
    tensors = {tensor.name: tensor.dims for tensor in read_layout(whole[0]).tensors}
    split = [tensor for path in parts for tensor in read_layout(path).tensors]
    assert {tensor.name: tensor.dims for tensor in split} == tensors
    assert tensors["blk.29.ffn_down_exps.weight"] == (32, N_EMBD, 4)
    assert tensors["blk.28.ffn_down.weight"] == (N_FF, N_EMBD)
    counts = {read_layout(path).values["split.tensors.count"] for path in parts}
    assert counts == {len(split)}


def _toy_teacher(path: Path) -> None:
    """The teacher's header and the tensors that a student with one layer of experts takes from it, zeros."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_FF)
    writer.add_head_count(9)
    writer.add_head_count_kv(3)
    writer.add_rope_freq_base(1e5)
    writer.add_rope_dimension_count(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b"])
    kind = gguf.GGMLQuantizationType.Q4_1
    embedding = np.zeros((N_VOCAB, N_EMBD // 32 * 34), dtype=np.uint8)
    writer.add_tensor("token_embd.weight", embedding, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name, rows, columns in (("gate", N_FF, N_EMBD), ("up", N_FF, N_EMBD), ("down", N_EMBD, N_FF)):
        for index in (28, 29):
            data = np.zeros((rows, columns // 32 * 20), dtype=np.uint8)
            writer.add_tensor(f"blk.{index}.ffn_{name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_reuse_of_neighbouring_tokens() -> None:
    same, apart = np.zeros((4, 1), dtype=np.int64), np.arange(4).reshape(4, 1)
    assert reuse([Run({}, {0: same})]) == 0.25
    assert reuse([Run({}, {0: apart})]) == 1.0
    assert reuse([Run({}, {0: same, 1: apart})]) == 0.625


def test_hits_of_a_cache_of_the_last_used() -> None:
    routes = np.array([[0, 1], [0, 1], [2, 3], [0, 1]])
    assert hits([Run({}, {0: routes})], experts=8) == 0.25  # room for two: the second row alone
    assert hits([Run({}, {0: routes})], experts=16) == 0.5  # room for four: the last row too
    assert hits([Run({0: routes[:1]}, {0: routes})], experts=8) == 0.5  # the prompt had warmed it


def test_shares_are_against_a_fair_one() -> None:
    assert shares([Run({0: np.array([[0, 1]])}, {0: np.array([[0, 2]])})], experts=4) == (0.0, 2.0)


def test_a_published_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "toy.csv"
    path.write_text(
        "# route_trace v1\n# model=toy n_layer=1 n_expert=8 n_expert_used=2\n"
        "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n"
        "0,0,0,0,0,3,0.5,0,1\n0,0,0,0,1,4,0.5,0,1\n0,1,1,0,0,3,0.5,1,1\n0,1,1,0,1,5,0.5,0,1\n"
    )
    runs, experts = read_trace(path)
    assert experts == 8
    assert runs[0].before[0].tolist() == [[3, 4]]
    assert runs[0].decode[0].tolist() == [[3, 5]]


def test_steps_are_full_and_repeatable() -> None:
    reader = Reader(_shelf([5, 7, 3]), tokens=6, seed=1)
    first = [next(iter(reader.steps(skip=skip))) for skip in range(4)]
    again = [step for step, _ in zip(reader.steps(), range(4), strict=False)]
    for one, other in zip(first, again, strict=True):
        assert sum(one.documents) == len(one.tokens) == 6
        assert (one.rows == other.rows).all()


def test_the_last_row_of_a_document_has_no_loss() -> None:
    shelf = _shelf([4, 4])
    for step, _ in zip(Reader(shelf, tokens=8, seed=0).steps(), range(3), strict=False):
        ends = np.isin(step.rows, [3, 7])
        assert (step.weights[ends] == 0).all()
        assert (step.weights[~ends] > 0).all()


def _shelf(lengths: list[int]) -> Shelf:
    n = sum(lengths)
    roles = np.array([(FRAME, USER, ASSISTANT)[place % 3] for place in range(n)], dtype=np.uint8)
    return Shelf(
        np.arange(n, dtype=np.uint16), roles, np.array(lengths, dtype=np.int32),
        np.zeros((n, TOP), np.uint16), np.zeros((n, TOP), np.float16), np.zeros(n, np.float16),
    )  # fmt: skip


def test_a_shelf_comes_back_from_its_file(tmp_path: Path) -> None:
    shelf = _shelf([3, 2])
    shelf.save(tmp_path / "shelf.npz")
    back = Shelf.load(tmp_path / "shelf.npz")
    assert (back.tokens == shelf.tokens).all()
    assert [path.name for path in tmp_path.iterdir()] == ["shelf.npz"]
    assert back.first(3).lengths.tolist() == [3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("License-Expression: MIT\n", "MIT"),
        ("License-Expression: Apache-2.0 OR BSD-2-Clause\n", "Apache-2.0 OR BSD-2-Clause"),
        ("License-Expression: MIT AND LGPL-2.1-only\n", None),
        ("Classifier: License :: OSI Approved :: BSD License\n", "BSD"),
        ("Classifier: License :: OSI Approved :: GNU General Public License v3 (GPLv3)\n", None),
        ("License: MIT License\n", "MIT"),
        ("License: proprietary\n", None),
        ("Name: nothing\n", None),
    ],
)
def test_only_permissive_packages_lend_text(text: str, expected: str | None) -> None:
    assert licence_of(HeaderParser().parsestr(text)) == expected


def test_loops_are_seen() -> None:
    assert loops("I like to walk in the park. " * 3)
    assert not loops("I like to walk in the park. " * 2)
    assert not loops("")


def test_forty_questions() -> None:
    assert len(set(questions(40))) == 40


def test_a_figure_says_whether_its_bar_is_kept() -> None:
    assert Figure("ratio", 1.2, most=1.15).verdict == "MISSED"
    assert Figure("share", 0.75, least=0.7, percent=True).verdict == "kept"
    assert Figure("plain", 3.0).verdict == "–"
    assert "| rho | 0.6 | 0.55 to 0.8 | kept |" in table([Figure("rho", 0.6, 0.55, 0.8)])
