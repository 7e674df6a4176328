"""Widened models: more bytes, the same text."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import gguf
import gguf.quants
import numpy as np
import numpy.typing as npt
import pytest
from families import FAMILIES, STATEFUL, Family, Type, write_family
from toys import load, plan_for, write_llama

from engine.bench import main
from engine.bench.filler import TYPES, Fill, Filler
from engine.bench.widen import Widening
from engine.events import Done, Tokens
from engine.header import BLOCKS
from engine.loop import generate
from engine.model import files_of, read_model_info
from engine.native import CancelFlag, llama
from engine.paths import EMBEDDED_MODEL
from engine.request import Request, Sampling, Speculation
from engine.session import Session

#: Plain numbers are summed in groups of 64, what is left over one by one; these experts have 32 neurons.
REGROUPED = {"mellum": Type.F32, "bf16": Type.BF16}
MOE = {name: family for name, family in (FAMILIES | STATEFUL).items() if family.is_moe} | {
    kind.name.lower(): replace(FAMILIES["olmoe"], experts=kind)
    for kind in (Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.F16, Type.BF16, Type.MXFP4)
}
NEWER = {41, 42}  # types of which the gguf package has no arithmetic
MIB = 1 << 20


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_family(tmp_path / "small.gguf", FAMILIES["olmoe"])


def made(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> dict[str, object]:
    assert main(["large", *map(str, argv), "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def refusal(capsys: pytest.CaptureFixture[str], *argv: str | Path, code: int = 1) -> str:
    """The one line a run says that makes nothing."""
    with pytest.raises(SystemExit) as left:
        main(["large", *map(str, argv)])
    assert left.value.code == code
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    return said.err


def widened(source: Path, path: Path, steps: int) -> Path:
    with path.open("wb") as file:
        Widening(source).by_steps(steps).write(file, 0, lambda _: None)
    return path


# --- the same text


def test_the_embedded_model_says_the_same(
    embedded: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = made(capsys, "--bytes", "200M", "-o", tmp_path / "large.gguf")
    assert found["bytes"] == read_model_info(tmp_path / "large.gguf").size_bytes
    assert int(str(found["bytes"])) >= 200 * MIB
    assert found["n_ff_exp"] == Widening(tmp_path / "large.gguf").width > Widening(EMBEDDED_MODEL).width
    with load(tmp_path / "large.gguf", n_ctx=512) as large:
        for mode in ("ar", "s2-exact"):
            for temperature in (0.0, 0.8):
                expected = answer(embedded, mode, temperature)
                assert answer(large, mode, temperature) == expected, (mode, temperature)
                assert len(expected[0]) == 40


def answer(session: Session, mode: str, temperature: float) -> tuple[list[int], str]:
    session.rewind(0)
    request = Request(
        session.dialogue.tokenize_text("Once upon a time in a harbour town there lived"),
        Sampling(temperature=temperature, seed=7),
        Speculation(mode, 2, 4),
        max_tokens=40,
        ignore_eos=True,
    )
    ids, text = [], ""
    for event in generate(session, request, CancelFlag()):
        if isinstance(event, Tokens):
            ids += event.ids
        if isinstance(event, Tokens | Done):
            text += event.text
    return ids, text


@pytest.mark.parametrize("name", MOE)
def test_every_family_computes_the_same(name: str, tmp_path: Path) -> None:
    source = write_family(tmp_path / "source.gguf", MOE[name])
    own, one, many = (
        logits(path)
        for path in (source, widened(source, tmp_path / "1.gguf", 1), widened(source, tmp_path / "5.gguf", 5))
    )
    assert np.array_equal(one, many)
    if name in REGROUPED:
        assert np.array_equal(own.argmax(axis=1), many.argmax(axis=1))
        assert np.abs(own - many).max() < 0.01
    else:
        assert np.array_equal(own, many)


def logits(path: Path) -> npt.NDArray[np.float32]:
    """Of a wide pass, and of passes of one row after it."""
    tokens = np.random.default_rng(1).integers(263, 355, 30).tolist()
    with Session.load(path, plan_for(path, n_ctx=256)) as session:
        session.decode(tokens[:20], 0, all_logits=True)
        found = [row_of(session, row) for row in range(20)]
        for at in range(20, 30):
            session.decode(tokens[at : at + 1], at, all_logits=True)
            found.append(row_of(session, 0))
    return np.stack(found)


def row_of(session: Session, row: int) -> npt.NDArray[np.float32]:
    pointer = llama().llama_get_logits_ith(session.context, row)
    return np.ctypeslib.as_array(pointer, (len(session.vocab),)).copy()


# --- weights that are nothing


@pytest.mark.parametrize("kind", sorted(TYPES))
def test_quiet_weights_are_zero_and_hard_to_compress(kind: int) -> None:
    size = BLOCKS[kind][1]
    rows = Filler("blk.0.ffn_gate_exps.weight", kind, (Fill.QUIET,), 0).rows(0, 6, 256 * size)
    # Zeros of types without a scale differ in their sign only.
    least = 0.03 * size if kind in (0, 1, 30) else 0.22 * size if kind == 39 else 0.6 * size
    entropy = sum(bits_of(column) for column in rows.reshape(-1, size).T) / 8
    assert entropy > least
    if kind in NEWER:
        return
    assert not gguf.quants.dequantize(rows, Type(kind)).any()


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16, Type.MXFP4])
def test_loud_weights_are_small_numbers(kind: Type) -> None:
    rows = Filler("blk.0.ffn_up_exps.weight", kind, (Fill.QUIET, Fill.LOUD), 0)
    numbers = gguf.quants.dequantize(rows.rows(1, 4, 64 * BLOCKS[kind][1]), kind)
    assert not numbers[1::2].any()  # the first row was the tensor's second
    assert (numbers[::2] != 0).mean() > 0.8
    assert np.abs(numbers).max() < 0.1


def bits_of(column: npt.NDArray[np.uint8]) -> float:
    """Shannon's entropy of one byte of the blocks, somewhat low because there are few blocks."""
    shares = np.unique(column, return_counts=True)[1] / len(column)
    return float(-(shares * np.log2(shares)).sum())


# --- the file


@pytest.mark.parametrize("name", ["olmoe", "gpt-oss", "granite-swa"])
def test_all_else_is_copied(name: str, tmp_path: Path) -> None:
    source = write_family(tmp_path / "source.gguf", FAMILIES[name])
    own, large = (gguf.GGUFReader(path) for path in (source, widened(source, tmp_path / "w.gguf", 2)))
    assert list(own.fields) == list(large.fields)
    changed = {key for key in own.fields if own.fields[key].contents() != large.fields[key].contents()}
    assert changed
    assert all(key.endswith("feed_forward_length") for key in changed)
    assert [tensor.name for tensor in own.tensors] == [tensor.name for tensor in large.tensors]
    for before, after in zip(own.tensors, large.tensors, strict=True):
        assert before.tensor_type == after.tensor_type
        if re.search(r"_(gate|up|gate_up)_exps|_down_exps.weight", before.name):
            assert after.n_bytes == 3 * before.n_bytes  # from 32 neurons to 96
        else:
            assert before.data.tobytes() == after.data.tobytes()


@pytest.mark.parametrize("name", ["deepseek", "gpt-oss"])
def test_a_split_set_becomes_one_file(name: str, tmp_path: Path) -> None:
    """That which its model in one file becomes, but for what is said of the set."""
    one = write_family(tmp_path / "one.gguf", FAMILIES[name])
    first = write_family(tmp_path / "set.gguf", FAMILIES[name], tensors_per_file=7)
    files = files_of(first)
    assert len(files) > 3
    made = [widened(path, tmp_path / f"{path.stem}.wide", 2) for path in (one, files[1])]
    assert np.array_equal(logits(made[1]), logits(first))
    expected, found = map(gguf.GGUFReader, made)
    told = {key: field.contents() for key, field in found.fields.items() if not key.startswith("split.")}
    n_keys = told.pop("GGUF.kv_count")
    assert n_keys != expected.fields["GGUF.kv_count"].contents()
    assert told == {key: expected.fields[key].contents() for key in told}
    assert len(expected.fields) == len(told) + 1
    for before, after in zip(expected.tensors, found.tensors, strict=True):
        assert (before.name, before.tensor_type) == (after.name, after.tensor_type)
        assert before.data.tobytes() == after.data.tobytes()


def test_real_neurons_come_first_in_each_half(tmp_path: Path) -> None:
    source = write_family(tmp_path / "source.gguf", FAMILIES["granite-swa"])
    name = "blk.1.ffn_gate_up_exps.weight"
    own, large = (
        next(tensor.data for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)
        for path in (source, widened(source, tmp_path / "w.gguf", 1))
    )
    assert np.array_equal(large[:, 0:32], own[:, :32])
    assert np.array_equal(large[:, 64:96], own[:, 32:])


def test_experts_without_gates_are_zero_in_up(tmp_path: Path) -> None:
    up_and_down = {name: shape for name, shape in FAMILIES["mellum"].feed.items() if "gate_exps" not in name}
    source = write_family(tmp_path / "source.gguf", replace(FAMILIES["mellum"], feed=up_and_down))
    tensors = gguf.GGUFReader(widened(source, tmp_path / "w.gguf", 1)).tensors
    up = next(tensor.data for tensor in tensors if tensor.name == "blk.0.ffn_up_exps.weight")
    assert up[:, :32].all()
    assert not up[:, 32:].any()


def test_the_size_is_met_within_a_step(small: Path) -> None:
    widening = Widening(small)
    sizes = [widening.by_steps(steps).size for steps in range(1, 200)]
    for wanted in (sizes[0] - 1, sizes[0], sizes[0] + 1, 5 * MIB, sizes[100]):
        reached = widening.reaching(wanted)
        assert reached.size == min(size for size in sizes if size >= wanted)
        file = BytesIO()
        reached.write(file, 0, lambda _: None)
        assert len(file.getvalue()) == reached.size


def test_the_same_seed_gives_the_same_bytes(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        made(capsys, "--bytes", "2M", "-m", small, "-o", tmp_path / name, "--seed", seed)
    first, again, other = ((tmp_path / name).read_bytes() for name in "abc")
    assert first == again != other


def test_a_made_model_is_found_again(small: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = made(capsys, "--bytes", "1.5M", "-m", small)
    path = Path(str(found["path"]))
    assert path.parent == cache / "s2chat" / "models"
    assert path.stat().st_size == found["bytes"] == read_model_info(path).size_bytes
    experts = sum(t.n_bytes for t in gguf.GGUFReader(path).tensors if "_exps" in t.name)
    assert found["experts_bytes"] == experts
    stamp = path.stat().st_mtime_ns
    assert made(capsys, "--bytes", "1536K", "-m", small) == found  # the same number of bytes
    assert path.stat().st_mtime_ns == stamp
    assert made(capsys, "--bytes", "1.5M", "-m", small, "--seed", "1")["path"] != found["path"]
    assert len(list(path.parent.iterdir())) == 2
    assert main(["large", "--bytes", "1.5M", "-m", str(small)]) == 0
    assert f"{found['bytes']:,} bytes" in capsys.readouterr().out


# --- what is refused, and ends before its time


def test_a_dense_model_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "a dense model" in refusal(capsys, "--bytes", "1G", "-m", write_llama(tmp_path / "dense.gguf"))


def test_dense_layers_of_the_same_width_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feed = FAMILIES["mellum"].feed
    wide = {name: tuple(96 if size == 32 else size for size in shape) for name, shape in feed.items()}
    family = Family("llama", FAMILIES["mellum"].attention, wide, {"expert_feed_forward_length": 96}, dense=1)
    path = write_family(tmp_path / "mixed.gguf", family)
    assert "no width for the routed experts" in refusal(capsys, "--bytes", "1G", "-m", path)


def test_no_room_is_refused_before_anything_is_written(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = set(tmp_path.iterdir())
    line = refusal(capsys, "--bytes", "1000000G", "-m", small, "-o", tmp_path / "large.gguf")
    assert re.search(r"has no room: 1,000,000.\d\d GiB wanted, [\d,.]+ GiB missing", line)
    assert set(tmp_path.iterdir()) == before


def test_sizes_and_places_that_make_no_sense(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "itself has" in refusal(capsys, "--bytes", "1K", "-m", small, code=2)
    assert "is there already" in refusal(capsys, "--bytes", "1G", "-m", small, "-o", small, code=2)
    for size in ("4P", "-1", "1.G", "", "G"):
        with pytest.raises(SystemExit) as left:
            main(["large", f"--bytes={size}"])
        assert left.value.code == 2
        assert "is no size" in capsys.readouterr().err


@pytest.fixture
def writing(small: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that has written 20 MB of 8 GB."""
    path = tmp_path / "large.gguf"
    command = [sys.executable, "-m", "app.cli", "bench", "large", "--bytes", "8G"]
    command += ["-m", str(small), "-o", str(path)]
    run = subprocess.Popen(command, cwd=EMBEDDED_MODEL.parents[1], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 20
    part = tmp_path / "large.gguf.part"
    while not (part.exists() and part.stat().st_size > 20e6):
        assert run.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield run
    run.kill()
    run.communicate()


def test_a_killed_run_leaves_nothing_under_the_name(
    writing: subprocess.Popen[str], small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "large.gguf"
    assert "by another run" in refusal(capsys, "--bytes", "2M", "-m", small, "-o", path)
    writing.kill()
    writing.wait()
    assert not path.exists()
    found = made(capsys, "--bytes", "2M", "-m", small, "-o", path)
    assert path.stat().st_size == found["bytes"]
    assert {item.name for item in tmp_path.iterdir()} == {"large.gguf", "small.gguf"}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(
    writing: subprocess.Popen[str], how: signal.Signals, tmp_path: Path
) -> None:
    writing.send_signal(how)
    said = writing.communicate(timeout=20)[1]
    assert writing.returncode == 1
    assert "stopped, nothing was kept" in said.splitlines()[-1]
    assert [item.name for item in tmp_path.iterdir()] == ["small.gguf"]
