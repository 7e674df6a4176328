"""Packs: the same bytes in another order, whatever happens while they are written and after."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from stacks import EXPERTS, KINDS, assert_holds, write_stacks
from toys import copy_embedded, write_llama

from engine import pack as packs
from engine.errors import Busy, Cancelled, ModelError, S2Error
from engine.experts import catalogue_of
from engine.model import files_of
from engine.pack import PAGE, Blueprint, damaged, pack_of, part_of, places
from engine.packing import Packing, remove
from engine.paths import EMBEDDED_MODEL
from engine.size import size

ROOT = EMBEDDED_MODEL.parents[1]


def silent(what: str, done: int, whole: int) -> None:
    """A progress nobody hears."""


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_stacks(tmp_path / "model.gguf")[0]


@pytest.fixture
def pack(model: Path) -> Path:
    return Packing(model).write(silent)


def copied(source: Path, to: Path) -> Path:
    """Its date, too."""
    return Path(shutil.copy2(source, to))


def reason(model: Path) -> str:
    """Why the pack of `model` is not used."""
    reasons: list[str] = []
    assert pack_of(model, reasons.append) is None
    (line,) = reasons
    return line


# --- the same bytes


def test_the_embedded_model(tmp_path: Path) -> None:
    model = copy_embedded(tmp_path)
    files = files_of(model)
    assert pack_of(model) is None
    seen: list[tuple[int, int]] = []
    place = Packing(model).write(lambda _, done, whole: seen.append((done, whole)))
    assert place == model.with_suffix(".s2pack")
    catalogue = pack_of(model)
    assert catalogue is not None
    assert catalogue.files == (place,)
    assert [stack.name for stack in catalogue.tensors] == [s.name for s in catalogue_of(model).tensors]
    assert_holds(catalogue, *files)
    assert seen == sorted(seen)
    assert seen[-1] == (place.stat().st_size, place.stat().st_size)
    assert set(tmp_path.iterdir()) == {*files, place}


@pytest.mark.parametrize("per_file", [0, 1, 2, 5])
@pytest.mark.parametrize("piece", [PAGE, 3 * PAGE, 8 << 20])
def test_pieces_of_any_size(
    per_file: int, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records larger than a piece, pieces of many records, stacks of a layer in several files."""
    monkeypatch.setattr(packs, "_PIECE", piece)
    files = write_stacks(tmp_path / "model.gguf", per_file)
    place = Packing(files[-1]).write(silent)
    catalogue = pack_of(files[0])
    assert catalogue is not None
    assert_holds(catalogue, *files)
    assert damaged(place, Blueprint.of(catalogue_of(files[0])), silent) == []
    for stack in catalogue.tensors:
        assert stack.offset % PAGE == stack.stride % PAGE == 0
        assert stack.stride >= stack.expert_bytes


def test_every_part_is_padded_with_zeros(model: Path, pack: Path) -> None:
    catalogue = pack_of(model)
    assert catalogue is not None
    data = bytearray(pack.read_bytes())
    first = min(stack.offset for stack in catalogue.tensors)
    assert any(data[first:])
    for stack in catalogue.tensors:
        for index in range(EXPERTS):
            at = stack.offset + index * stack.stride
            data[at : at + stack.expert_bytes] = bytes(stack.expert_bytes)
    assert not any(data[first:])
    assert len(data) % PAGE == 0


def test_the_same_model_gives_the_same_pack(model: Path, pack: Path) -> None:
    first = pack.read_bytes()
    pack.unlink()
    assert Packing(model).write(silent).read_bytes() == first


def test_pieces_are_read_and_written_to_the_end(
    model: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system may move less than it was asked to."""
    whole = pack.read_bytes()
    pack.unlink()
    read, write = os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: read(fd, [into[0][:1000]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:1001], at))
    assert Packing(model).write(silent).read_bytes() == whole


def test_a_folder_that_cannot_be_written(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: Path(path) != model.parent)
    place = Packing(model).write(silent)
    assert place.parent == cache / "s2chat" / "packs"
    catalogue = pack_of(model)
    assert catalogue is not None
    assert catalogue.files == (place,)
    assert_holds(catalogue, model)
    assert remove(model) == [(place, Blueprint.of(catalogue_of(model)).size)]


def test_a_link_leads_to_the_same_pack(model: Path, pack: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "model.gguf").symlink_to(model)
    catalogue = pack_of(elsewhere / "model.gguf")
    assert catalogue is not None
    assert catalogue.files == (pack,)


# --- what is no pack of this model


def test_no_pack_is_no_word(model: Path) -> None:
    assert pack_of(model, pytest.fail) is None


def test_a_dense_model_has_none(tmp_path: Path) -> None:
    model = write_llama(tmp_path / "dense.gguf")
    assert pack_of(model, pytest.fail) is None
    with pytest.raises(ModelError, match="no experts"):
        Packing(model)


def test_a_model_that_was_changed(model: Path) -> None:
    Packing(model).write(silent)
    before = model.stat()
    stack = catalogue_of(model).tensors[0]
    with model.open("r+b") as file:
        file.seek(stack.offset + stack.n_expert // 2 * stack.stride)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "another content" in reason(model)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert "model.gguf has another date" in reason(model)
    with model.open("ab") as file:
        file.write(b"\0")
    assert "another size" in reason(model)
    assert "`s2chat models pack` makes it anew" in reason(model)
    Packing(model).write(silent)
    catalogue = pack_of(model)
    assert catalogue is not None
    assert_holds(catalogue, model)


def test_another_model_under_the_same_name(model: Path, pack: Path, tmp_path: Path) -> None:
    kept = copied(pack, tmp_path / "kept")
    before = model.stat()
    write_stacks(model, rows=64)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "another size" in reason(model)
    other = write_stacks(tmp_path / "other.gguf")[0]
    kept.rename(tmp_path / "other.s2pack")
    assert "made from model.gguf" in reason(other)


def test_one_file_of_a_set_was_changed(tmp_path: Path) -> None:
    files = write_stacks(tmp_path / "model.gguf", 3)
    Packing(files[0]).write(silent)
    os.utime(files[2], ns=(0, 0))
    assert f"{files[2].name} has another date" in reason(files[0])


@pytest.mark.parametrize(
    ("where", "word"),
    [(0, "no pack"), (8, "version"), (20, "first page"), (30, "first page"), (70, "first page")],
)
def test_a_damaged_first_page(where: int, word: str, model: Path, pack: Path) -> None:
    flip(pack, where)
    assert word in reason(model)


def test_damaged_places_and_lengths(model: Path, pack: Path) -> None:
    blueprint = Blueprint.of(catalogue_of(model))
    good = pack.read_bytes()
    for where, word in ((PAGE + 5, "index"), (blueprint.table_at + 40, "table")):
        flip(pack, where)
        assert f"its {word} is damaged" in reason(model)
        pack.write_bytes(good)
    for end in (0, 1, PAGE - 1, PAGE, blueprint.table_at + 3, len(good) - PAGE, len(good) - 1):
        pack.write_bytes(good[:end])
        assert "damaged" in reason(model), end
    pack.write_bytes(good + b"\0")
    assert "damaged" in reason(model)
    pack.write_bytes(bytes(len(good)))
    assert "no pack" in reason(model)
    pack.write_bytes(good)
    assert pack_of(model) is not None


def test_other_things_of_that_name(model: Path) -> None:
    place = places(model)[0]
    place.mkdir()
    assert "cannot be read" in reason(model)
    place.rmdir()
    place.symlink_to("nowhere")
    assert "cannot be read" in reason(model)


def test_damaged_records_are_named(model: Path, pack: Path) -> None:
    blueprint = Blueprint.of(catalogue_of(model))
    assert damaged(pack, blueprint, silent) == []
    flip(pack, blueprint.layers[0].at)
    flip(pack, blueprint.layers[3].at + 4 * blueprint.layers[3].record - 1)  # in the padding
    assert damaged(pack, blueprint, silent) == ["expert 0 of layer 0", "expert 3 of layer 10"]
    with pack.open("r+b") as file:
        file.truncate(blueprint.size - 1)
    assert damaged(pack, blueprint, silent)[-1] == f"expert {EXPERTS - 1} of layer 10"


def flip(path: Path, where: int) -> None:
    with path.open("r+b") as file:
        file.seek(where)
        byte = file.read(1)
        file.seek(where)
        file.write(bytes([byte[0] ^ 0x10]))


# --- killed, cancelled, twice

# Writes the pack slowly and says how far it is.
SLOW = """
import sys, time
from pathlib import Path
from engine import pack as packs
from engine.packing import Packing
packs._PIECE = 1 << 18
def progress(what, done, whole):
    print(what, done, flush=True)
    time.sleep(0.01)
Packing(Path(sys.argv[1])).write(progress)
"""


@pytest.fixture
def embedded_copy(tmp_path: Path) -> Path:
    return copy_embedded(tmp_path)


@pytest.fixture
def writing(embedded_copy: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has written some megabytes of the pack of `embedded_copy`."""
    run = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(embedded_copy)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    for line in run.stdout:
        if int(line.split()[1]) > 8e6:
            break
    yield run
    run.kill()
    run.wait()
    run.stdout.close()


def fresh(model: Path, tmp_path: Path) -> bytes:
    """The pack of the model, made elsewhere without a break."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    for file in files_of(model):
        copied(file, folder / file.name)
    return Packing(folder / model.name).write(silent).read_bytes()


def test_a_killed_run_is_gone_on_with(
    writing: subprocess.Popen[str], embedded_copy: Path, tmp_path: Path
) -> None:
    model, pack = embedded_copy, places(embedded_copy)[0]
    part = part_of(pack)
    writing.send_signal(signal.SIGKILL)
    writing.wait()
    assert pack_of(model, pytest.fail) is None
    assert part.stat().st_size > 8e6
    part.rename(pack)
    assert "no pack" in reason(model)  # an unfinished one never passes for a pack
    pack.rename(part)
    steps: list[tuple[str, int]] = []
    place = Packing(model).write(lambda what, done, _: steps.append((what, done)))
    checked = [done for what, done in steps if what == "checking"]
    written = [done for what, done in steps if what == "writing"]
    assert checked[-1] > 7e6
    assert written[0] > 7e6
    assert place.read_bytes() == fresh(model, tmp_path)
    assert not part.exists()


def test_what_a_power_cut_spoils_is_written_again(
    writing: subprocess.Popen[str], embedded_copy: Path, tmp_path: Path
) -> None:
    model, part = embedded_copy, part_of(places(embedded_copy)[0])
    writing.kill()
    writing.wait()
    with part.open("r+b") as file:
        file.seek(4 << 20)
        file.write(bytes(1 << 20))
    assert Packing(model).write(silent).read_bytes() == fresh(model, tmp_path)


@pytest.mark.parametrize("other", ["expert", "model"])
def test_what_was_begun_for_another_model_is_not_gone_on_with(
    other: str, writing: subprocess.Popen[str], embedded_copy: Path, tmp_path: Path
) -> None:
    model, files = embedded_copy, files_of(embedded_copy)
    writing.kill()
    writing.wait()
    if other == "expert":
        stack = catalogue_of(model).tensors[0]
        flip(files[stack.file], stack.offset)
    else:
        made = write_stacks(tmp_path / "other.gguf", -(-4 * len(KINDS) // len(files)))
        for file, name in zip(made, files, strict=True):
            file.rename(name)
    place = Packing(model).write(silent)
    assert place.read_bytes() == fresh(model, tmp_path)
    catalogue = pack_of(model)
    assert catalogue is not None
    assert_holds(catalogue, *files)


def test_two_at_once(writing: subprocess.Popen[str], embedded_copy: Path) -> None:
    model = embedded_copy
    with pytest.raises(Busy, match="by another process"):
        Packing(model).write(silent)
    with pytest.raises(Busy, match="by another process"):
        remove(model)
    assert writing.wait(60) == 0
    assert pack_of(model) is not None


def test_another_process_was_quicker(model: Path) -> None:
    late = Packing(model)
    place = Packing(model).write(silent)
    stamp = place.stat().st_mtime_ns
    assert late.write(silent) == place
    assert place.stat().st_mtime_ns == stamp
    assert not part_of(place).exists()


@pytest.mark.parametrize("how", [KeyboardInterrupt, Cancelled("enough")])
def test_cancelled_and_gone_on_with(
    how: type[BaseException] | BaseException, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "_PIECE", PAGE)

    def stop(_: str, done: int, whole: int) -> None:
        if done > whole // 2:
            raise how

    with pytest.raises(Cancelled, match="stopped") as left:
        Packing(model).write(stop)
    assert "goes on from there" in left.value.hint
    part = tmp_path / "model.s2pack.part"
    assert Packing(model).begun == part.stat().st_blocks * 512 > 0
    steps: list[str] = []
    place = Packing(model).write(lambda what, *_: steps.append(what))
    assert steps.count("checking") > 3
    assert "writing" in steps
    assert place.read_bytes() == fresh(model, tmp_path)


def test_a_model_that_changes_meanwhile(model: Path, tmp_path: Path) -> None:
    def change(*_: object) -> None:
        os.utime(model, ns=(0, 0))

    with pytest.raises(S2Error, match="was changed while it was packed"):
        Packing(model).write(change)
    assert list(tmp_path.iterdir()) == [model]


def test_a_model_that_shrinks_meanwhile(model: Path) -> None:
    packing = Packing(model)
    with model.open("r+b") as file:
        file.truncate(model.stat().st_size // 2)
    with pytest.raises(ModelError, match=r"model.gguf: it ends at"):
        packing.write(silent)
    assert packing.found is None


# --- a disk without room


def test_no_room_is_said_before_anything_is_written(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packing = Packing(model)
    monkeypatch.setattr(Packing, "free", packing.size - 5)
    with pytest.raises(S2Error, match=f"{size(packing.size)} needed, .* free") as left:
        packing.write(silent)
    assert "5 bytes more" in left.value.hint
    assert list(model.parent.iterdir()) == [model]


def test_what_is_there_counts_as_room(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packing = Packing(model)
    monkeypatch.setattr(Packing, "free", packing.size - PAGE)
    part_of(packing.place).write_bytes(b"x" * 2 * PAGE)
    packing.check_room()
    part_of(packing.place).unlink()
    packing.place.write_bytes(b"x" * PAGE)  # no good, and gives way
    packing.check_room()


@pytest.mark.parametrize("when", ["pwrite", "fsync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up(when: str, number: int, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = getattr(os, when), iter(range(100))

    def full(*arguments: object) -> object:
        if next(calls) == (5 if when == "pwrite" else 0):
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    monkeypatch.setattr(os, when, full)
    with pytest.raises(S2Error, match="the disk filled up"):
        Packing(model).write(silent)
    assert list(model.parent.iterdir()) == [model]


# Packs a model on a file system of 24 MB of its own, which fills up meanwhile.
FULL = """
set -e
mount -t tmpfs -o size=24m none "$1"
cp -p "$2" "$1/model.gguf"
cd "$3"
exec "$4" -c '
import sys, os
from pathlib import Path
from engine import pack as packs
from engine.errors import S2Error
from engine.packing import Packing
packs._PIECE = 4096
folder = Path(sys.argv[1])
packing = Packing(folder / "model.gguf")
def fill(*_):
    if not (folder / "other").exists():
        with open(folder / "other", "wb") as other:
            os.posix_fallocate(other.fileno(), 0, packing.free - packing.size // 2)
try:
    packing.write(fill)
except S2Error as error:
    print(error.line())
print(sorted(os.listdir(folder)))
(folder / "other").unlink()
packing.write(lambda *_: None)
print(packs.pack_of(folder / "model.gguf") is not None)
' "$1"
"""


def test_a_real_disk_that_fills_up(tmp_path: Path) -> None:
    model = write_stacks(tmp_path / "model.gguf", rows=256)[0]
    folder = tmp_path / "small"
    folder.mkdir()
    can = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*can, "true"], capture_output=True).returncode:
        pytest.skip("no file systems of one's own on this machine")
    done = subprocess.run(
        [*can, "sh", "-c", FULL, "sh", folder, model, ROOT, sys.executable],
        capture_output=True,
        text=True,
        timeout=60,
    )
    said, left, packed = done.stdout.splitlines()
    assert "the disk filled up meanwhile, what was written is removed" in said
    assert left == "['model.gguf', 'other']"
    assert packed == "True"


def test_a_file_system_for_small_files_only(tmp_path: Path) -> None:
    model = write_stacks(tmp_path / "model.gguf")[0]
    code = (
        "import resource, sys; from pathlib import Path; from engine.packing import Packing\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "Packing(Path(sys.argv[1])).write(lambda *_: None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, model], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert "are not allowed there, nothing was kept" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == [model]


# --- removed


def test_removing_takes_the_pack_and_never_the_model(model: Path, pack: Path) -> None:
    held, content = pack.stat().st_size, model.read_bytes()
    part_of(pack).write_bytes(bytes(7))
    assert remove(model) == [(part_of(pack), 7), (pack, held)]
    assert list(model.parent.iterdir()) == [model]
    assert model.read_bytes() == content
    assert remove(model) == []


def test_the_pack_of_a_model_that_is_gone(model: Path, pack: Path) -> None:
    model.unlink()
    assert [path for path, _ in remove(model)] == [pack]


def test_memory_stays_small(tmp_path: Path) -> None:
    """Of 60 MB of experts only a few pieces are in memory."""
    model = write_stacks(tmp_path / "model.gguf", rows=8192)[0]
    code = (
        "import sys; from pathlib import Path; from engine.packing import Packing\n"
        "Packing(Path(sys.argv[1])).write(lambda *_: None)\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, model], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert places(model)[0].stat().st_size > 55 << 20
    assert int(done.stdout.split()[1]) < 48 << 10
