"""G4 on disks as people have them: odd file systems give the same text, one that fails no wrong one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest
from decoding import Answer, answer, prompt_of, request
from mounts import failing_from, forgotten, loop_mounted, memory_mounted, overlay_mounted
from toys import copy_embedded, file_of_experts, plan_for

from engine.errors import ModelError
from engine.model import files_of, read_model_info
from engine.packing import Packing
from engine.paths import EMBEDDED_MODEL
from engine.session import Session

CELLS, TOKENS = 300, 24
#: For the model, its pack and what a file system takes for itself, in whole MiB.
SPACE = 2 * (read_model_info(EMBEDDED_MODEL).size_bytes >> 20) + 56 << 20
PLACES = {
    "tmpfs": lambda folder: memory_mounted(folder, "tmpfs"),
    "ramfs": lambda folder: memory_mounted(folder, "ramfs"),
    "overlay": overlay_mounted,
    "ext4, 4K sectors": lambda folder: loop_mounted("ext4", 4096, folder, SPACE),
    "exFAT": lambda folder: loop_mounted("exfat", 512, folder, SPACE),
    "exFAT, 4K sectors": lambda folder: loop_mounted("exfat", 4096, folder, SPACE),
    "here": nullcontext,
}


@contextmanager
def starved(model: Path) -> Iterator[Session]:
    """`model` with a tenth of its experts in memory: the others are read again and again."""
    with Session.load(model, plan_for(model, n_ctx=512, n_threads=2, store=True)) as session:
        assert session.store is not None
        session.store.resize(session.store.bytes_all // 10)
        yield session


def ask(session: Session, passage: str) -> Answer:
    session.rewind(0)
    return answer(session, request(prompt_of(session, passage, CELLS), temperature=0.8, tokens=TOKENS))


@pytest.fixture(scope="module")
def expected(passage: str) -> Answer:
    with Session.load(EMBEDDED_MODEL, plan_for(EMBEDDED_MODEL, n_ctx=512, n_threads=2, store=True)) as whole:
        return ask(whole, passage)


def check_right(session: Session, passage: str, expected: Answer) -> None:
    found = ask(session, passage)
    assert (found.ids, found.text) == (expected.ids, expected.text)
    assert found.cache == expected.cache, "equal tokens, but another KV cache"


@pytest.mark.parametrize("name", PLACES)
def test_every_file_system_gives_the_same_text(
    name: str, tmp_path: Path, passage: str, expected: Answer
) -> None:
    with PLACES[name](tmp_path) as place:
        model = copy_embedded(place or tmp_path)
        for packed in (False, True):
            if packed:
                assert Packing(model).write(lambda *_: None).parent == model.parent
            forgotten(*(file for file in model.parent.iterdir() if file.is_file()))
            with starved(model) as session:
                check_right(session, passage, expected)
                assert session.store is not None
                assert session.store.catalogue.files[0].suffix == (".s2pack" if packed else ".gguf")
                assert session.store.stats().reads > session.store.stats().n_experts
                said = [notice for notice in session.notices if "through the page cache" in notice]
                assert session.store.reason == session.plan.reasons["reading"]
                assert bool(said) == (name == "ramfs"), session.store.reason


def test_a_disk_that_fails_fails_the_request_and_no_more(
    tmp_path: Path, passage: str, expected: Answer
) -> None:
    with loop_mounted("ext2", 512, tmp_path, SPACE) as place:
        model = copy_embedded(place)
        last = file_of_experts(model)
        forgotten(*files_of(model))
        with starved(model) as session:
            assert session.store is not None
            check_right(session, passage, expected)
            stack = session.store.catalogue.tensors[-1]
            with last.open("rb") as file:
                mark = os.pread(file.fileno(), 64, stack.offset)
            forgotten(*files_of(model))
            with failing_from(tmp_path / "image", mark, place):
                for _ in range(2):
                    with pytest.raises(ModelError, match=rf"{last.name}: reading .*Input/output error"):
                        ask(session, passage)
                assert not session.store.outdated
            check_right(session, passage, expected)


def test_a_limit_on_address_space_is_named() -> None:
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from engine.errors import ModelError\n"
        "from engine.experts import catalogue_of\n"
        "from engine.native import llama\n"
        "from engine.store import Store\n"
        "llama()\n"
        "catalogue = catalogue_of(Path(sys.argv[1]))\n"
        "pages = int(Path('/proc/self/statm').read_text().split()[0])\n"
        "most = pages * resource.getpagesize() + catalogue.expert_bytes // 2\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "try:\n"
        "    Store.open(catalogue)\n"
        "except ModelError as error:\n"
        "    print(error.line())\n"
    )
    command = [sys.executable, "-c", code, str(EMBEDDED_MODEL)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "no address space for the experts" in said
    assert "ulimit -v" in said


def test_a_file_that_is_replaced_or_removed_stays_readable(
    tmp_path: Path, passage: str, expected: Answer
) -> None:
    model = copy_embedded(tmp_path)
    files = files_of(model)
    with starved(model) as session:
        for file in files:
            (tmp_path / "other").write_bytes(bytes(4096))
            (tmp_path / "other").replace(file)
        check_right(session, passage, expected)
        for file in files:
            file.unlink()
        check_right(session, passage, expected)
