"""Model files: whole, damaged, split, missing. Nothing a file says may end the process or eat its memory."""

from __future__ import annotations

import ctypes
import os
import struct
import tracemalloc
from pathlib import Path

import gguf
import psutil
import pytest
from toys import (
    ARRAY,
    F32,
    STRING,
    U8,
    U32,
    U64,
    array,
    copy_embedded,
    header,
    llama_pairs,
    load,
    pair,
    plan_for,
    tensor,
    text,
    write_llama,
)

from engine.errors import ModelError
from engine.events import Done, Tokens
from engine.experts import catalogue_of
from engine.header import BLOCKS, read_layout
from engine.loop import generate
from engine.model import files_of, read_model_info
from engine.native import CancelFlag, llama
from engine.paths import EMBEDDED_MODEL
from engine.plan import Plan
from engine.request import Request, Sampling, Speculation
from engine.session import Session

MIB = 1 << 20
PLAN = plan_for(EMBEDDED_MODEL)


def refusal(path: Path, plan: Plan = PLAN) -> str:
    """Why the engine refuses to load `path`: one line that names the file."""
    with pytest.raises(ModelError) as caught:
        Session.load(path, plan)
    line = caught.value.line()
    assert "\n" not in line
    assert path.stem.split("-0000")[0] in line
    assert caught.value.hint
    return line


# --- damaged headers

WORD = text("w")
DAMAGED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "text": (b"Once upon a time there was a model.\n" * 9, "not a GGUF file"),
    "magic-only": (b"GGUF", "ends inside its header"),
    "half-magic": (b"GG", "not a GGUF file"),
    "version-1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version"),
    "no-counts": (b"GGUF" + struct.pack("<I", 3), "ends inside its header"),
    "nothing-in-it": (header(), "no architecture"),
    "key-length-0": (header(pair("", U64, b"\0" * 8)), "name of 0 bytes"),
    "key-length-2^48": (header(struct.pack("<Q", 1 << 48) + b"x" * 64), f"name of {1 << 48} bytes"),
    "key-length-2^64-1": (header(b"\xff" * 64), "name of"),
    "n-kv-huge": (header(*llama_pairs(), n_pairs=1 << 60), "keys"),
    "n-kv-one-too-many": (header(*llama_pairs(), n_pairs=5), "ends inside its header"),
    "n-tensors-huge": (header(*llama_pairs(), n_tensors=1 << 62), "tensors"),
    "n-tensors-one-too-many": (header(*llama_pairs(), n_tensors=1), "tensors"),
    "value-of-no-type": (header(pair("a", 77, b"\0" * 32)), "unknown type 77"),
    "string-too-long": (header(pair("a", STRING, struct.pack("<Q", 1 << 50) + b"x" * 32)), "ends inside"),
    "array-huge": (header(pair("a", ARRAY, array(U64, 1 << 61))), "ends inside"),
    "array-of-strings-huge": (
        header(pair("a", ARRAY, array(STRING, 1 << 61, WORD * 9))),
        "items in an array",
    ),
    "array-of-strings-short": (header(pair("a", ARRAY, array(STRING, 2000, WORD * 1999))), "ends inside"),
    "array-string-huge": (
        header(pair("a", ARRAY, array(STRING, 2000, struct.pack("<Q", 1 << 63) + WORD * 2500))),
        "ends inside",
    ),
    "nested-arrays": (header(pair("a", ARRAY, array(ARRAY, 1, array(U8, 1, b"\0")))), "array of arrays"),
    "deep-arrays": (header(pair("a", ARRAY, array(ARRAY, 1) * 5000)), "array of arrays"),
    "architecture-a-number": (header(pair("general.architecture", U32, b"\0" * 4)), "no architecture"),
    "architecture-unknown": (
        header(pair("general.architecture", STRING, text("x")), pair("x.block_count", U32, b"\1\0\0\0")),
        "unknown model architecture",
    ),
    "n-dims-huge": (
        header(*llama_pairs(), tensors=(text("t") + struct.pack("<I", 10**6) + b"\1" * 64,)),
        "1000000 dimensions",
    ),
    "dims-over-2^64": (
        header(*llama_pairs(), tensors=(tensor("t", (1 << 40, 1 << 40), 0),)),
        "bytes are missing",
    ),
    "dims-negative": (header(*llama_pairs(), tensors=(tensor("t", ((1 << 64) - 32,), 2),)), "missing"),
    "type-99": (header(*llama_pairs(), tensors=(tensor("t", (32,), 99),)), "t is of type 99"),
    "type-4": (header(*llama_pairs(), tensors=(tensor("t", (32,), 4),)), "t is of type 4"),
    "half-a-block": (header(*llama_pairs(), tensors=(tensor("t", (33,), 39),)), "no multiple of 32"),
    "no-data": (header(*llama_pairs(), tensors=(tensor("t", (32,), 0),)), "bytes are missing"),
    "offset-2^63": (header(*llama_pairs(), tensors=(tensor("t", (1,), 0, 1 << 63),)), "bytes are missing"),
    "tensor-without-name": (header(*llama_pairs(), tensors=(tensor("", (1,), 0),)), "name of 0 bytes"),
    "no-layers": (header(*llama_pairs(block_count=0)), "0 layers"),
    "layers-4-billion": (header(*llama_pairs(block_count=(1 << 32) - 1)), "4294967295 layers"),
    "experts-4-billion": (header(*llama_pairs(expert_count=(1 << 32) - 1)), "4294967295 experts"),
    "no-expert-used": (header(*llama_pairs(expert_count=8)), "0 experts used of 8"),
    "more-experts-used": (header(*llama_pairs(expert_count=8, expert_used_count=9)), "9 experts used of 8"),
    "groups": (
        header(*llama_pairs(expert_count=8, expert_used_count=2, expert_group_count=3)),
        "0 of 3 groups used for 8 experts",
    ),
    "epsilon-nan": (
        header(
            *llama_pairs(),
            pair("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", float("nan"))),
        ),
        "an epsilon of nan",
    ),
    "rope-scaling": (
        header(*llama_pairs(), pair("llama.rope.scaling.type", STRING, text("spiral"))),
        "rope scaling 'spiral'",
    ),
    "no-tensors": (header(*llama_pairs()), ""),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_header_is_refused(tmp_path: Path, name: str) -> None:
    content, reason = DAMAGED[name]
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        line = refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reason in line
    assert peak < 4 * MIB


def test_a_long_text_inside_the_file_is_not_read(tmp_path: Path) -> None:
    """A key, or a value, as long as a whole model: the lengths are right, the memory is not spent."""
    path = tmp_path / "long.gguf"
    before = psutil.Process().memory_info().rss
    for content, reason in (
        (header(struct.pack("<Q", 1 << 36), n_pairs=1), "name of"),
        (
            header(struct.pack("<Q", 1) + b"a" + struct.pack("<IQ", STRING, 1 << 36), n_pairs=1),
            "no architecture",
        ),
    ):
        path.write_bytes(content)
        os.truncate(path, (1 << 36) + len(content))
        assert reason in refusal(path)
    assert psutil.Process().memory_info().rss - before < 64 * MIB


@pytest.mark.parametrize("cut", [24, 30, 100, 1000, 0.02, 0.5, 0.95, 0.99])
def test_the_embedded_model_cut_inside_its_header(tmp_path: Path, cut: float) -> None:
    """After so many bytes, or that share of the header."""
    path = tmp_path / "cut.gguf"
    whole = read_layout(EMBEDDED_MODEL).tensors_end
    with EMBEDDED_MODEL.open("rb") as file:
        path.write_bytes(file.read(cut if isinstance(cut, int) else int(cut * whole)))
    assert "cut.gguf" in refusal(path)


def test_what_the_authors_advise_is_read_and_what_nobody_could_ask_for_is_not(tmp_path: Path) -> None:
    path = tmp_path / "toy.gguf"
    advice = {
        "temp": (F32, "<f", 0.7),
        "top_k": (U32, "<I", 20),
        "min_p": (F32, "<f", 3.0),
        "mirostat": (U32, "<I", 1),
    }
    pairs = [
        pair(f"general.sampling.{name}", kind, struct.pack(form, value))
        for name, (kind, form, value) in advice.items()
    ]
    path.write_bytes(header(*llama_pairs(), pair("general.sampling.top_p", STRING, text("much")), *pairs))
    assert read_model_info(path).sampling == {"temperature": 0.7, "top_k": 20}


def test_values_that_are_no_counts_stand_for_absent_ones(tmp_path: Path) -> None:
    path = tmp_path / "odd.gguf"
    odd = [
        pair(
            "llama.attention.head_count_kv",
            ARRAY,
            array(F32, 2, struct.pack("<2f", float("inf"), float("nan"))),
        ),
        pair("llama.vocab_size", F32, struct.pack("<f", float("inf"))),
        pair("llama.attention.key_length", STRING, text("64")),
    ]
    path.write_bytes(header(*llama_pairs(), *odd))
    info = read_model_info(path)
    assert (info.name, info.n_layer, info.n_ctx_train, info.is_moe) == ("odd", 2, 256, False)
    assert info.kv_bytes_per_token == 2 * 2 * 128


# --- tensor sizes


def test_every_type_has_the_size_the_library_gives_it() -> None:
    base = ctypes.CDLL(str(Path(llama()._lib._name).with_name("libggml-base.so")))
    base.ggml_blck_size.restype, base.ggml_type_size.restype = ctypes.c_int64, ctypes.c_size_t
    known = {kind: (base.ggml_blck_size(kind), base.ggml_type_size(kind)) for kind in range(43)}
    assert {kind: size for kind, size in known.items() if size != (0, 0)} == BLOCKS
    for name in ("MXFP4", "BF16", "IQ1_M", "Q4_K"):
        kind = gguf.GGMLQuantizationType[name]
        assert BLOCKS[kind] == gguf.GGML_QUANT_SIZES[kind]


@pytest.mark.parametrize(("kind", "size"), [(39, 17 * 4), (30, 256), (2, 72), (0, 512)])
def test_the_data_of_a_tensor_must_be_all_there(tmp_path: Path, kind: int, size: int) -> None:
    """128 weights: one byte less is refused."""
    content = header(*llama_pairs(), tensors=(tensor("t", (32, 4), kind),))
    start = -(-len(content) // 32) * 32
    path = tmp_path / "sparse.gguf"
    path.write_bytes(content)
    os.truncate(path, start + size)
    assert read_layout(path)
    os.truncate(path, start + size - 1)
    with pytest.raises(ModelError, match=r"sparse.gguf: 1 bytes are missing"):
        read_layout(path)


def test_an_alignment_of_its_own(tmp_path: Path) -> None:
    align = pair("general.alignment", U32, struct.pack("<I", 4096))
    content = header(*llama_pairs(), align, tensors=(tensor("t", (32,), 0),))
    path = tmp_path / "aligned.gguf"
    path.write_bytes(content)
    os.truncate(path, 4096 + 128)
    assert read_layout(path)
    os.truncate(path, 4096 + 100)
    with pytest.raises(ModelError, match="28 bytes"):
        read_layout(path)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the embedded model that may be cut shorter and shorter."""
    return copy_embedded(tmp_path_factory.mktemp("copy"))


def test_truncated_tensor_data(copy: Path) -> None:
    last, stack = files_of(copy)[-1], catalogue_of(copy).tensors[0]
    before = psutil.Process().memory_info().rss
    os.truncate(last, last.stat().st_size - MIB)
    assert f"{last.name}: {MIB:,} bytes are missing" in refusal(copy)
    os.truncate(files_of(copy)[stack.file], stack.offset + stack.expert_bytes // 2)  # inside an expert
    assert "bytes are missing" in refusal(copy)
    assert psutil.Process().memory_info().rss - before < 64 * MIB


# --- what is no model file at all


def test_no_such_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "none.gguf")


def test_a_directory(tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    assert "not a file" in refusal(tmp_path / "folder.gguf")


def test_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "not a file" in refusal(tmp_path / "pipe.gguf")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "secret.gguf"
    path.write_bytes(header(*llama_pairs()))
    path.chmod(0)
    assert "Permission denied" in refusal(path)


def test_names_that_no_file_can_have() -> None:
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(ModelError):
            read_model_info(Path(name))


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.gguf"))
    write_llama(tmp_path / "plain.gguf").rename(path)
    with load(path) as session:
        assert session.info.name == "Toy"


# --- split sets


@pytest.fixture
def split(tmp_path: Path) -> list[Path]:
    first = write_llama(tmp_path / "toy.gguf", tensors_per_file=7)
    files = sorted(tmp_path.glob("*.gguf"))
    assert first == files[0]
    assert len(files) >= 3
    return files


def test_how_the_weights_are_spread() -> None:
    info, catalogue = read_model_info(EMBEDDED_MODEL), catalogue_of(EMBEDDED_MODEL)
    assert info.expert_bytes == catalogue.expert_bytes
    # All are alike.
    assert info.largest_expert_bytes * catalogue.n_layers * info.n_expert == info.expert_bytes
    assert 0 < info.tied_bytes < info.size_bytes - info.expert_bytes


def test_any_file_of_a_split_set_stands_for_the_set(split: list[Path]) -> None:
    for file in split:
        info = read_model_info(file)
        assert info.path == split[0]
        assert info.size_bytes == sum(path.stat().st_size for path in split)
    with load(split[1]) as session:
        assert len(answer(session, "s2-exact")[0]) == 4


def test_through_links_as_a_download_cache_has_them(split: list[Path], tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    for no, file in enumerate(split):
        blob = file.rename(tmp_path / f"blob{no}")
        (tmp_path / "links" / file.name).symlink_to(blob)
    with load(tmp_path / "links" / split[2].name) as session:
        assert session.info.path.name == split[0].name


def test_a_missing_file_is_named(split: list[Path]) -> None:
    split[2].unlink()
    for file in (split[0], split[1]):
        line = refusal(file)
        assert str(split[2]) in line
        assert "missing" in line


def test_a_cut_file_is_named(split: list[Path]) -> None:
    os.truncate(split[1], split[1].stat().st_size - 100)
    assert f"{split[1]}: 100 bytes are missing" in refusal(split[0])


def test_one_file_of_a_set_under_another_name(split: list[Path], tmp_path: Path) -> None:
    assert "split set" in refusal(split[0].rename(tmp_path / "renamed.gguf"))
    assert "renamed2.gguf" in refusal(split[1].rename(tmp_path / "renamed2.gguf"))


# --- a dense model


def answer(session: Session, mode: str) -> tuple[tuple[int, ...], Done]:
    request = Request(
        prompt=session.dialogue.tokenize_text("hi"),
        sampling=Sampling(temperature=0.0),
        speculation=Speculation(mode, 99, 8),
        max_tokens=4,
        ignore_eos=True,
    )
    events = list(generate(session, request, CancelFlag()))
    done = events[-1]
    assert isinstance(done, Done)
    return tuple(token for event in events if isinstance(event, Tokens) for token in event.ids), done


@pytest.mark.parametrize("asked", ["s2", "s2-exact"])
def test_a_dense_model_loads_and_runs_in_ar(tmp_path: Path, asked: str) -> None:
    with load(write_llama(tmp_path / "dense.gguf"), mode=asked) as session:
        assert not session.info.is_moe
        assert not session.can_draft
        assert session.plan.speculation.mode == "ar"
        assert sum("dense model" in notice for notice in session.notices) == 1
        plain, _ = answer(session, "ar")
        drafted, done = answer(session, asked)
        assert drafted == plain
        assert done.timings.draft_n == 0
        assert done.timings.acceptance is None


def test_a_refused_load_leaves_the_next_one_alone(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(DAMAGED["no-tensors"][0])
    for _ in range(3):
        refusal(bad)
    with load(write_llama(tmp_path / "good.gguf")) as session:
        assert answer(session, "ar")[1].reason == "max_tokens"


def test_heads_too_narrow_for_a_q8_0_cache_are_named(tmp_path: Path) -> None:
    path = write_llama(tmp_path / "narrow.gguf")
    assert "q8_0" in refusal(path, plan_for(path, cache_type="q8_0"))
