"""The header reader against whatever bytes: it answers or refuses, soon, and takes no memory for it."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from mounts import failing_from, forgotten, loop_mounted
from stacks import write_stacks
from toys import ARRAY, STRING, U8, U32, array, header, llama_pairs, pair, tensor, text, write_llama

from engine.errors import ModelError
from engine.header import read_layout
from engine.model import read_model_info
from engine.paths import EMBEDDED_MODEL

MIB = 1 << 20


def seed_file() -> bytes:
    """A header with every kind of value, and a little data behind it."""
    content = header(
        *llama_pairs(expert_count=8, expert_used_count=2),
        pair("general.name", STRING, text("a name")),
        pair("a.list", ARRAY, array(U32, 3, struct.pack("<3I", 1, 2, 3))),
        pair("a.words", ARRAY, array(STRING, 3, text("x") * 3)),
        tensors=(tensor("blk.0.ffn_up_exps.weight", (32, 4, 8), 39), tensor("token_embd.weight", (32, 4), 0)),
    )
    return content + bytes(4096)


def test_broken_bytes_are_refused_or_read(tmp_path: Path) -> None:
    """Bytes changed, numbers put to extremes, pieces taken out and doubled: 1,500 files from one seed."""
    whole, dice = seed_file(), random.Random(7)
    path = tmp_path / "fuzz.gguf"
    path.write_bytes(whole)
    assert read_model_info(path).n_expert == 8
    extremes = [
        struct.pack("<Q", value) for value in (0, 1, 1 << 20, 1 << 31, 1 << 48, 1 << 63, (1 << 64) - 1)
    ]
    before, started, refused = psutil.Process().memory_info().rss, time.process_time(), 0
    for _ in range(1500):
        data = bytearray(whole[: len(whole) - 4096])
        for _ in range(dice.randint(1, 3)):
            at = dice.randrange(4, len(data))
            match dice.randrange(4):
                case 0:
                    data[at] = dice.randrange(256)
                case 1:
                    data[at : at + 8] = dice.choice(extremes)
                case 2:
                    del data[at : at + dice.randrange(1, 40)]
                case _:
                    data[at:at] = data[at : at + dice.randrange(1, 40)]
        path.write_bytes(data + bytes(4096))
        try:
            read_model_info(path)
        except ModelError as error:
            refused += "fuzz.gguf" in error.line()
    assert 300 < refused < 1500
    assert time.process_time() - started < 30
    assert psutil.Process().memory_info().rss - before < 64 * MIB


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (header(pair("a", ARRAY, array(STRING, 1 << 32))), "more than 64 MiB"),
        (header(n_pairs=1 << 32), "keys"),
        (header(n_tensors=1 << 32), "tensors"),
        (header(pair("a", ARRAY, array(U8, 1 << 36))), "no architecture"),
    ],
)
def test_a_large_file_of_nothing_is_done_with_soon(tmp_path: Path, start: bytes, said: str) -> None:
    path = tmp_path / "huge.gguf"
    path.write_bytes(start)
    os.truncate(path, 1 << 37)
    before, started = psutil.Process().memory_info().rss, time.process_time()
    with pytest.raises(ModelError, match=said):
        read_model_info(path)
    assert time.process_time() - started < 10
    assert psutil.Process().memory_info().rss - before < 96 * MIB  # the pages that were looked at


def test_a_disk_that_fails_inside_a_header_is_said(tmp_path: Path) -> None:
    """In a process of its own: what reads headers shows the list of models and owns the terminal."""
    mark = b"the disk fails here."
    words = array(STRING, 100_000, text("some word") * 50_000 + text(mark) + text("some word") * 49_999)
    with loop_mounted("ext2", 512, tmp_path) as folder:
        path = folder / "model.gguf"
        path.write_bytes(header(*llama_pairs(), pair("words", ARRAY, words)))
        forgotten(path)
        with failing_from(tmp_path / "image", mark, folder):
            refused = described(path)
            assert "model.gguf: Input/output error" in refused.stdout, refused
        assert described(path).stdout == "llama\n"


def described(path: Path) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from engine.errors import ModelError\n"
        "from engine.model import read_model_info\n"
        "try:\n"
        "    print(read_model_info(Path(sys.argv[1])).arch)\n"
        "except ModelError as error:\n"
        "    print(error.line())\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_file_of_another_set_is_named(tmp_path: Path) -> None:
    for name, per_file in (("a", 4), ("b", 7)):
        (tmp_path / name).mkdir()
        write_stacks(tmp_path / name / "m.gguf", per_file)
    ours = sorted((tmp_path / "a").glob("*.gguf"))
    theirs = sorted((tmp_path / "b").glob("*.gguf"))
    assert read_model_info(ours[2]).path == ours[0]
    kept = ours[1].read_bytes()
    ours[1].write_bytes(theirs[1].read_bytes())
    with pytest.raises(ModelError, match=f"{ours[1].name}: does not belong .* file 2 of {len(theirs)}"):
        read_model_info(ours[0])
    ours[1].write_bytes(ours[0].read_bytes())
    with pytest.raises(ModelError, match=f"{ours[1].name}: does not belong .* file 1 of"):
        read_model_info(ours[0])
    ours[1].write_bytes(kept)
    assert read_model_info(ours[0]).n_expert == 6


def test_the_quantisation_has_its_name(tmp_path: Path) -> None:
    assert read_model_info(EMBEDDED_MODEL).quant
    assert read_model_info(write_llama(tmp_path / "plain.gguf")).quant == "F32"
    path = tmp_path / "named.gguf"
    path.write_bytes(header(*llama_pairs(), pair("general.file_type", U32, struct.pack("<I", 15 | 1024))))
    assert read_model_info(path).quant == "Q4_K_M"
    path.write_bytes(header(*llama_pairs(), tensors=(tensor("t", (32, 4), 39),)) + bytes(400))
    assert read_model_info(path).quant == "MXFP4"
    assert read_layout(path).tensors[0].size == 4 * 17


def test_a_part_for_a_model_is_none(tmp_path: Path) -> None:
    path = tmp_path / "adapter.gguf"
    path.write_bytes(header(*llama_pairs(), pair("general.type", STRING, text("adapter"))))
    with pytest.raises(ModelError, match="not a model but a part for one: adapter"):
        read_model_info(path)
