"""Which models are found on a machine, what is said of each, and that no file can spoil the list."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

import psutil
import pytest
from stacks import write_stacks
from toys import STRING, copy_embedded, header, llama_pairs, pair, tensor, text, write_llama

from app.inventory import Item, all_places, scan
from app.places import Place
from app.verdict import CANNOT, DISK, FITS, SLOW, UNREADABLE, best, verdict
from engine.device import Device
from engine.model import ModelInfo
from engine.paths import EMBEDDED_MODEL
from engine.plan import Wishes

GIB = 1 << 30
MACHINE = Device(cores=4, memory_bytes=16 * GIB, available_bytes=12 * GIB, arch="x86_64")


@pytest.fixture(autouse=True)
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, where no tool has kept anything yet."""
    for name in ("HF_HUB_CACHE", "HF_HOME", "LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / ".cache"))
    return tmp_path / "home"


def found(*folders: Path) -> list[Item]:
    return list(scan(all_places(Path("/nowhere"), folders), MACHINE, Wishes()))[
        1:
    ]  # the first is the one that ships


def in_folder(folder: Path) -> list[Item]:
    return list(scan((Place(folder, "mine"),), MACHINE, Wishes()))


def test_the_one_that_ships_is_there_without_any_other(house: Path) -> None:
    assert not house.exists()
    (only,) = scan(all_places(house / "none"), MACHINE, Wishes())
    assert (only.path, only.tool, only.verdict.word) == (EMBEDDED_MODEL, "s2chat", FITS)
    twice = (*all_places(house / "none"), Place(EMBEDDED_MODEL.parent, "mine"))
    assert [item.path for item in scan(twice, MACHINE, Wishes())] == [EMBEDDED_MODEL]


def test_the_caches_of_common_tools(house: Path, tmp_path: Path) -> None:
    model = write_llama(tmp_path / "toy.gguf").read_bytes()

    def put(path: Path, data: bytes = model) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    studio = put(house / ".lmstudio/models/owner/repo/studio.gguf")
    cpp = put(house / ".cache/llama.cpp/owner_repo_cpp.gguf")
    hub = house / ".cache/huggingface/hub/models--owner--repo"
    blob = put(hub / "blobs" / ("a" * 64))
    put(hub / "blobs" / ("b" * 64 + ".incomplete"), model[:100])
    for revision in ("one", "two"):
        (hub / "snapshots" / revision).mkdir(parents=True)
        (hub / "snapshots" / revision / "hub.gguf").symlink_to(f"../../blobs/{blob.name}")
    (hub / "snapshots" / "two" / "gone.gguf").symlink_to("../../blobs/none")
    ollama = house / ".ollama/models"
    put(ollama / "blobs" / "sha256-aa", model)
    put(ollama / "blobs" / "sha256-bb", b"no model")
    kind = "application/vnd.ollama.image.model"
    for name, digest in (("tiny", "sha256:aa"), ("other", "sha256:bb"), ("evil", "sha256:../../x")):
        layers = [{"mediaType": "text/plain", "digest": "sha256:cc"}, {"mediaType": kind, "digest": digest}]
        manifest = ollama / "manifests/registry.ollama.ai/library" / name / "latest"
        put(manifest, json.dumps({"layers": layers}).encode())
    put(ollama / "manifests/registry.ollama.ai/library/odd/latest", b"[" * 100_000)
    items = {item.path: item for item in found()}
    assert {path: item.tool for path, item in items.items() if item.usable} == {
        studio: "LM Studio",
        cpp: "llama.cpp",
        hub / "snapshots/one/hub.gguf": "Hugging Face",
        ollama / "blobs/sha256-aa": "Ollama",
    }
    assert items[ollama / "blobs/sha256-aa"].name == "tiny:latest"
    assert "no such file" in items[hub / "snapshots/two/gone.gguf"].verdict.words


def test_a_split_set_is_one_entry_whichever_file_is_met(tmp_path: Path) -> None:
    store, links = tmp_path / "store", tmp_path / "links"
    store.mkdir()
    links.mkdir()
    files = write_stacks(store / "set.gguf", 4)
    (item,) = in_folder(store)
    assert (item.path, item.verdict.word) == (files[0], FITS)
    assert item.info is not None
    assert item.info.size_bytes == sum(file.stat().st_size for file in files)
    for number, file in enumerate(files):
        (links / file.name).symlink_to(file.rename(store / f"blob{number}"))
    (item,) = in_folder(links)
    assert item.usable
    (links / files[2].name).unlink()
    (item,) = in_folder(links)
    assert item.verdict.word == UNREADABLE
    assert f"{files[2].name}: missing from its split set" in item.verdict.words
    (links / files[0].name).unlink()
    assert len(in_folder(links)) == 1


def test_no_file_spoils_the_list(tmp_path: Path) -> None:
    """Each says why, none takes long or memory; the good one among them is there."""
    huge = struct.pack("<Q", 1 << 48) + b"x" * 64
    wrong = {
        "empty": b"",
        "magic": b"GGUF",
        "key-0": header(pair("", 4, b"\0" * 8)),
        "key-2^48": header(huge),
        "dims-1e6": header(*llama_pairs(), tensors=(text("t") + struct.pack("<I", 10**6) + b"\1" * 64,)),
        "dims-2^64": header(*llama_pairs(), tensors=(tensor("t", (1 << 40, 1 << 40), 0),)),
        "type-4": header(*llama_pairs(), tensors=(tensor("t", (32,), 4),)),
        "type-99": header(*llama_pairs(), tensors=(tensor("t", (32,), 99),)),
        "cut": EMBEDDED_MODEL.read_bytes()[:-1000],
        "adapter": header(*llama_pairs(), pair("general.type", STRING, text("adapter"))),
    }
    for name, content in wrong.items():
        (tmp_path / f"{name}.gguf").write_bytes(content)
    (tmp_path / "sparse.gguf").write_bytes(header(*llama_pairs(), n_pairs=1 << 30))
    os.truncate(tmp_path / "sparse.gguf", 1 << 40)
    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    mxfp4 = header(*llama_pairs(), tensors=(tensor("t", (32, 4), 39),))
    (tmp_path / "mxfp4.gguf").write_bytes(mxfp4 + bytes(32 + 17 * 4))
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self.gguf").symlink_to("self.gguf")
    (tmp_path / "mmproj-x.gguf").write_bytes(mxfp4)
    (tmp_path / "\x1b[31m[b]red.gguf").write_bytes(b"GGUF")
    before, started = psutil.Process().memory_info().rss, time.process_time()
    items = {item.path.stem: item for item in in_folder(tmp_path)}
    assert time.process_time() - started < 5
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert {name for name, item in items.items() if item.usable} == {"mxfp4"}
    assert set(items) == {*wrong, "sparse", "pipe", "mxfp4", "self", "\x1b[31m[b]red"}
    for name, item in items.items():
        assert item.verdict.words, name
        assert "\n" not in item.verdict.words


def test_what_cannot_be_looked_at_spoils_nothing(tmp_path: Path) -> None:
    """A link to an impossible name is an error to look at, as one into somebody else's folder is."""
    write_llama(tmp_path / "good.gguf")
    files = write_stacks(tmp_path / "set.gguf", 4)
    files[1].unlink()
    files[1].symlink_to("x" * 300)
    (tmp_path / "odd.gguf").symlink_to("x" * 300)
    items = {item.path.name: item for item in in_folder(tmp_path)}
    assert {name for name, item in items.items() if item.usable} == {"good.gguf"}
    for name in (files[0].name, "odd.gguf"):
        assert "File name too long" in items[name].verdict.words
    assert files[1].name in items[files[0].name].verdict.words
    assert in_folder(tmp_path / "odd.gguf") == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_has_none(tmp_path: Path) -> None:
    copy_embedded(tmp_path)
    tmp_path.chmod(0)
    try:
        assert in_folder(tmp_path) == []
    finally:
        tmp_path.chmod(0o700)


def a_model(size_gib: float, *, experts: int = 64, name: str = "m") -> ModelInfo:
    count = int(size_gib * GIB)
    return ModelInfo(
        path=Path(f"/{name}.gguf"), name=name, arch="a", size_bytes=count, n_layer=32, n_expert=experts,
        n_expert_used=8 if experts else 0, n_ctx_train=8192, kv_bytes_per_token=50_000,
        expert_bytes=count * 9 // 10 if experts else 0,
        largest_expert_bytes=count * 9 // 10 // 32 // experts if experts else 0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "word", "said"),
    [
        (a_model(4), FITS, "12.0 GiB that are free"),
        (a_model(4, experts=0), FITS, "12.0 GiB"),
        (a_model(30), DISK, "of its experts stay in memory"),
        (a_model(30, experts=0), SLOW, "cannot be read one by one"),
        (a_model(400), SLOW, "would crawl"),
    ],
)
def test_what_a_machine_makes_of_a_model(model: ModelInfo, word: str, said: str) -> None:
    judged = verdict(MACHINE, model, Wishes())
    assert judged.word == word
    assert said in judged.words


def test_a_wish_that_cannot_be_is_said() -> None:
    judged = verdict(MACHINE, a_model(30), Wishes(budget=1 << 20))
    assert judged.word == CANNOT
    assert "too small" in judged.words


def test_the_one_that_suits_best() -> None:
    models = [a_model(4, name="small"), a_model(14, name="disk"), a_model(60, name="huge")]
    models += [a_model(8, experts=0, name="dense"), a_model(200, experts=0, name="large")]
    rated = [(model.path, model, verdict(MACHINE, model, Wishes())) for model in models]
    assert best(rated) == Path("/disk.gguf")  # most of it stays in memory
    assert best(rated[:1] + rated[2:]) == Path("/small.gguf")
    assert best(rated[3:]) == Path("/dense.gguf")
    assert best(rated[4:]) is None
