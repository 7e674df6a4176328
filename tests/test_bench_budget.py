"""`bench decode --budget`: memory cgroups, the plain reader, what figures mean, and rows that run or die."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from stacks import write_stacks
from toys import budget_with, copy_embedded

from engine.bench import disk, main
from engine.bench.cgroup import MemoryGroup, NotPermitted
from engine.bench.child import Child, ChildEnded
from engine.bench.disk import PIECE_BYTES, RawReader, drop_cached
from engine.bench.take import Take, draft_bound, figures, overlap_bound
from engine.errors import ModelError
from engine.experts import catalogue_of
from engine.model import files_of, read_model_info, stem_of
from engine.paths import EMBEDDED_MODEL

MIB = 1 << 20
_EAT = "import sys; block = bytearray(int(sys.argv[1])); print(len(block))"


# --- memory cgroups


@pytest.fixture
def group() -> Iterator[MemoryGroup]:
    try:
        made = MemoryGroup.make(64 * MIB)
    except NotPermitted as error:
        pytest.skip(error.line())
    yield made
    made.close()


def eat(group: MemoryGroup, count: int) -> int:
    """The exit status of a process that writes so many bytes."""
    command = group.entering([sys.executable, "-I", "-S", "-c", _EAT, str(count)])
    return subprocess.run(command, capture_output=True).returncode


def test_a_process_within_the_limit_lives(group: MemoryGroup) -> None:
    assert eat(group, 16 * MIB) == 0
    assert not group.killed()
    assert 16 * MIB < (group.peak() or 0) <= 64 * MIB


def test_a_process_beyond_the_limit_is_killed_and_the_group_says_so(group: MemoryGroup) -> None:
    assert eat(group, 256 * MIB) == -9
    assert group.killed()
    assert (group.peak() or 0) > 60 * MIB


def test_pages_of_files_count(group: MemoryGroup, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(32 * MIB))
    subprocess.run(["sync", file], check=True)
    drop_cached([file])
    subprocess.run(group.entering(["cat", str(file)]), stdout=subprocess.DEVNULL, check=True)
    assert (group.peak() or 0) > 32 * MIB


def test_nothing_is_left_of_a_group(group: MemoryGroup) -> None:
    assert eat(group, MIB) == 0
    group.close()
    assert group.peak() is None
    assert eat(group, MIB) != 0


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_v2_goes_up_to_a_group_that_hands_memory_on(tmp_path: Path) -> None:
    inner = {"sys/fs/cgroup/app/worker/cgroup.subtree_control": "", "proc/self/cgroup": "0::/app/worker\n"}
    write(tmp_path, {**inner, "sys/fs/cgroup/app/cgroup.subtree_control": "cpu memory\n"})
    made = MemoryGroup.make(5 * MIB, tmp_path)
    (folder,) = (tmp_path / "sys/fs/cgroup/app").glob("s2chat-bench-*")
    assert (folder / "memory.max").read_text() == str(5 * MIB)
    assert (folder / "memory.swap.max").read_text() == "0"
    write(folder, {"memory.events": "oom 1\noom_kill 0\noom_group_kill 0\n", "memory.peak": "4096\n"})
    assert (made.killed(), made.peak()) == (False, 4096)
    write(folder, {"memory.events": "oom 3\noom_kill 1\n"})
    assert made.killed()
    assert made.entering(["x", "y"])[-2:] == ["x", "y"]


def test_no_controller_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.subtree_control": "cpu io\n"})
    with pytest.raises(NotPermitted, match="none has a memory controller"):
        MemoryGroup.make(MIB, tmp_path)


def test_a_group_that_cannot_be_entered_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cgroup.subtree_control": "memory\n"})
    monkeypatch.setattr(
        MemoryGroup, "entering", lambda *_: ["/bin/sh", "-c", "echo no permission >&2; exit 2"]
    )
    with pytest.raises(NotPermitted, match="no permission"):
        MemoryGroup.make(MIB, tmp_path)


# --- processes


def test_a_row_that_cannot_start_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["decode", "--rows", "ar", "-r", "1", "-m", "/nowhere.gguf"])
    assert left.value.code == 1
    assert "row ar: /nowhere.gguf: no such file (check the path" in capsys.readouterr().err


def test_a_dead_process_is_told_by_its_signal() -> None:
    with Child("row ar", "engine.bench.row", []) as child:
        child._process.kill()
        with pytest.raises(ChildEnded, match="row ar ended with signal 9"):
            child.ask()


# --- the disk


def test_the_plain_reader_reads_every_expert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "PIECE_BYTES", 1000)
    for file in write_stacks(tmp_path / "stacks.gguf", per_file=3):
        catalogue = catalogue_of(file)
    pieces = disk._pieces(catalogue, seed=1)
    assert sum(size for _, _, size in pieces) == catalogue.expert_bytes
    assert max(size for _, _, size in pieces) == 1000
    assert len({piece[:2] for piece in pieces}) == len(pieces)
    for file, offset, size in pieces:
        stack = next(
            t for t in catalogue.tensors if t.file == file and 0 <= offset - t.offset < t.n_expert * t.stride
        )
        assert (offset - stack.offset) % stack.stride + size <= stack.expert_bytes


def test_the_plain_reader_has_a_speed(tmp_path: Path) -> None:
    assert PIECE_BYTES % mmap.PAGESIZE == 0
    (file,) = write_stacks(tmp_path / "stacks.gguf")
    with RawReader(catalogue_of(file)) as reader:
        assert reader.mb_s(0.05) > 0


def test_it_does_without_direct_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really = os.open

    def refuse(path: str, flags: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return really(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    (file,) = write_stacks(tmp_path / "stacks.gguf")
    with RawReader(catalogue_of(file)) as reader:
        assert not reader.direct
        assert reader.mb_s(0.05) > 0


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    (file,) = write_stacks(tmp_path / "stacks.gguf")
    catalogue = catalogue_of(file)
    os.truncate(file, 4096)
    with RawReader(catalogue) as reader, pytest.raises(ModelError, match=r"stacks\.gguf: cut short"):
        reader.mb_s(1.0)


def cached_pages(file: Path) -> int:
    """Pages of `file` that the kernel holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as memory:
        window = ctypes.c_char.from_buffer(memory)
        held = (ctypes.c_uint8 * -(-len(memory) // mmap.PAGESIZE))()
        address = ctypes.c_void_p(ctypes.addressof(window))
        assert libc.mincore(address, ctypes.c_size_t(len(memory)), held) == 0
        del window
        return sum(page & 1 for page in held)


def test_what_the_kernel_keeps_of_a_file_is_dropped(tmp_path: Path) -> None:
    mounts = [part for part in psutil.disk_partitions(all=True) if tmp_path.is_relative_to(part.mountpoint)]
    if max(mounts, key=lambda part: len(part.mountpoint)).fstype in ("tmpfs", "ramfs"):
        pytest.skip("here files are in memory and nowhere else")
    file = tmp_path / "file"
    file.write_bytes(bytes(MIB))
    subprocess.run(["sync", file], check=True)
    assert cached_pages(file) == MIB // mmap.PAGESIZE
    drop_cached([file])
    assert cached_pages(file) == 0


# --- what figures mean

#: 10 tokens in 2 s, 0.8 of it waiting for 40 MB, which a plain reader gets in 0.5 s.
SYNC = Take(
    ids=[[1, 2, 3]],
    tokens=10,
    decode_s=2.0,
    prefill_tok_s=5.0,
    major_faults=3,
    disk_bytes=41_000_000,
    rss_peak_bytes=100,
    peak_bytes=120,
    reader_mb_s=80.0,
    store={
        "asked": 200,
        "hits": 150,
        "late": 20,
        "bytes_read": 40_000_000,
        "bytes_prefetched": 0,
        "prefetched": 0,
        "prefetch_used": 0,
        "stall_ns": 800_000_000,
    },
)
OVERLAPPED = replace(SYNC, decode_s=1.25, store={**SYNC.store, "stall_ns": 100_000_000})
MAPPED = replace(SYNC, decode_s=10.0, store={}, disk_bytes=500_000_000)


def test_a_take_is_per_token() -> None:
    assert SYNC.tok_s == 5.0
    assert SYNC.bytes_per_token == 4_000_000
    assert (SYNC.share("hits"), SYNC.share("late")) == (0.75, 0.1)
    assert SYNC.stall_ms == 80.0
    assert SYNC.io_ms == 50.0
    assert SYNC.compute_ms == 120.0
    assert SYNC.stall_mb_s == pytest.approx(50.0)
    assert SYNC.stall_to_reader == pytest.approx(0.625)
    assert SYNC.share("prefetch_used", "prefetched") is None


def test_without_a_store_the_kernel_counts() -> None:
    assert MAPPED.bytes_per_token == 50_000_000
    assert MAPPED.share("hits") is MAPPED.stall_ms is MAPPED.io_ms is overlap_bound(MAPPED) is None
    assert replace(MAPPED, disk_bytes=None).bytes_per_token is None


def test_the_bound_hides_the_shorter_behind_the_longer() -> None:
    assert overlap_bound(SYNC) == pytest.approx(170 / 120)
    assert overlap_bound(replace(SYNC, reader_mb_s=40_000 / 120)) == pytest.approx((12 + 120) / 120)
    assert overlap_bound(replace(SYNC, reader_mb_s=40_000 / 1200)) == pytest.approx(2.0)


def test_drafts_may_hide_all_that_is_not_the_disk() -> None:
    """Plain decode waits 50 ms of 125 for its reads; half of the bytes would take a fifth of its time."""
    drafted = replace(OVERLAPPED, store={**OVERLAPPED.store, "bytes_read": 20_000_000})
    assert OVERLAPPED.disk_share == pytest.approx(0.4)
    assert draft_bound(OVERLAPPED, drafted) == pytest.approx(5.0)
    assert draft_bound(MAPPED, drafted) is None
    line = figures([replace(drafted, decode_s=0.5)], [SYNC], plain=[OVERLAPPED])
    assert (line["ratio_to_ar"], line["draft_bound"]) == (pytest.approx(2.5), pytest.approx(5.0))


def test_figures_are_of_pairs() -> None:
    slow = replace(SYNC, decode_s=4.0)  # the machine was busy for one alternation
    line = figures([OVERLAPPED, replace(OVERLAPPED, decode_s=2.5)], [MAPPED, MAPPED], [SYNC, slow])
    assert (line["tok_s"], line["tok_s_min"], line["tok_s_max"]) == (6.0, 4.0, 8.0)
    assert (line["ratio"], line["ratio_min"], line["ratio_max"]) == (6.0, 4.0, 8.0)
    assert line["overlap_gain"] == pytest.approx(1.6)
    assert line["overlap_share"] == pytest.approx((1.6 / (170 / 120) + 1.6 / (370 / 320)) / 2)
    assert line["same_text"] is True


@pytest.mark.parametrize(
    ("ids", "same"), [([1, 2, 4], False), ([1, 2], True), ([2], False), ([1, 2, 3, 4], True)]
)
def test_texts_are_the_same_as_far_as_they_go(ids: list[int], same: bool) -> None:
    assert figures([replace(SYNC, ids=[ids])], [SYNC])["same_text"] is same


def test_a_row_without_takes_has_every_field() -> None:
    line = figures([], [SYNC])
    assert line.keys() == figures([SYNC], [SYNC]).keys()
    assert set(line.values()) == {None}
    assert figures([SYNC], [])["ratio"] is None


# --- the bench

_ROW = "engine.bench.budget_row"
#: Small enough to be quick.
QUICK = ("-r", "1", "-n", "4", "--warm", "2", "-t", "1", "--json")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the embedded model: nobody else holds its pages."""
    path = copy_embedded(tmp_path_factory.mktemp("own"))
    subprocess.run(["sync", *files_of(path)], check=True)
    return path


def rows_of(capfd: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, object]]:
    assert main(["decode", *argv, *QUICK]) == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_stock_pays_for_the_pages_of_its_file(
    capfd: pytest.CaptureFixture[str], model: Path, group: MemoryGroup
) -> None:
    group.close()
    pages = read_model_info(model).size_bytes // MIB  # what else the process takes fits in 96 MiB
    budget = f"{pages + 96}M"
    (row,) = rows_of(capfd, "-m", str(model), "--budget", budget, "--rows", "stock", "--cgroup")
    assert (row["bench"], row["row"], row["mode"], row["model"]) == ("decode", "stock", "ar", stem_of(model))
    assert row["budget_bytes"] == (pages + 96) * MIB
    assert row["cgroup_bytes"] == int((pages + 96) * MIB * 1.02)
    assert (row["tokens"], row["ratio"], row["ratio_to"]) == (12, 1.0, "stock")
    assert row["hits"] is row["late"] is row["stall_ms_per_token"] is row["error"] is row["note"] is None
    for key in ("tok_s", "prefill_tok_s", "reader_mb_s"):
        assert isinstance(row[key], float), key
        assert row[key] > 0, key
    assert isinstance(row["peak_bytes"], int)
    assert 0.95 * pages * MIB < row["peak_bytes"] <= row["cgroup_bytes"]


def test_a_row_out_of_memory_is_reported(
    capfd: pytest.CaptureFixture[str], model: Path, group: MemoryGroup
) -> None:
    group.close()
    argv = ("-m", str(model), "--budget", "16M", "--rows", "stock", "--cgroup")
    (row,) = rows_of(capfd, *argv)
    assert "out of memory" in str(row["error"])
    assert row["tok_s"] is row["ratio"] is row["tokens"] is None
    assert main(["decode", *argv, *QUICK[:-1]]) == 0
    assert "out of memory: the kernel killed it at 1" in capfd.readouterr().out


def test_a_slow_row_is_cut_off(capfd: pytest.CaptureFixture[str], model: Path) -> None:
    argv = ("-m", str(model), "--budget", "1G", "--rows", "stock", "-r", "1", "-t", "1", "--json")
    assert main(["decode", *argv, "-n", "3000", "--warm", "1", "--seconds", "1"]) == 0
    row = json.loads(capfd.readouterr().out)
    assert 3 <= row["tokens"] < 3000
    assert row["tok_s"] == pytest.approx(row["tokens"], rel=0.5)  # a second in all


def test_without_the_right_to_limit_rows_go_on_and_say_so(
    capfd: pytest.CaptureFixture[str], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> MemoryGroup:
        raise NotPermitted("no memory cgroup can be made here: tests forbid it")

    monkeypatch.setattr(MemoryGroup, "make", refuse)
    assert main(["decode", "-m", str(model), "--budget", "50%", "--rows", "stock", "--cgroup", *QUICK]) == 0
    captured = capfd.readouterr()
    row = json.loads(captured.out)
    assert row["cgroup_bytes"] is row["peak_bytes"] is None
    assert row["budget_bytes"] == read_model_info(model).size_bytes // 2
    assert row["note"].startswith("no memory cgroup can be made here: tests forbid it")
    assert row["note"] in captured.err


def test_the_store_overlaps_and_writes_the_same_text(capfd: pytest.CaptureFixture[str], model: Path) -> None:
    budget = f"{budget_with(0.25, 512)}M"
    sync, plain = rows_of(capfd, "-m", str(model), "--budget", budget, "--rows", "ar-sync,ar")
    assert (sync["row"], sync["mode"]) == ("ar-sync", "ar")
    assert sync["ratio_to"] == plain["ratio_to"] == "ar-sync"
    assert plain["same_text"] is True
    for row in (sync, plain):
        assert isinstance(row["hits"], float)
        assert 0 < row["hits"] <= 1
        assert isinstance(row["stall_ms_per_token"], float)
    assert plain["overlap_gain"] == plain["ratio"]
    assert isinstance(plain["overlap_bound"], float)
    assert 1 <= plain["overlap_bound"] <= 2


def test_a_bench_that_is_ended_takes_its_processes_along(model: Path, group: MemoryGroup) -> None:
    """Its row, too, which is in the middle of an answer, and the group that row was in."""
    parent = group.folder.parent
    group.close()
    command = [sys.executable, "-m", "app.cli", "bench", "decode", "-m", str(model), "--budget", "1G"]
    command += ["--rows", "stock", "--cgroup", "-n", "3000", "-t", "1"]
    bench = subprocess.Popen(command, cwd=EMBEDDED_MODEL.parents[1], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (rows := [row for row in psutil.Process(bench.pid).children() if _ROW in row.cmdline()]):
        assert bench.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list(parent.glob(f"s2chat-bench-{bench.pid}-*"))
    bench.terminate()
    bench.wait(30)
    assert not any(row.is_running() for row in rows)
    assert not list(parent.glob(f"s2chat-bench-{bench.pid}-*"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["decode", "--cgroup"], "--cgroup has no size without --budget"),
        (["decode", "--budget", "lots"], "'lots' is no budget"),
        (["decode", "--budget", "max"], "nothing to compare"),
        (["decode", "--budget", "1G", "-p", "7"], "-p is for the bench in memory"),
        (["decode", "--budget", "1G", "--rows", "stock-sync"], "rows are stock, auto, ar"),
        (["decode", "--budget", "1G", "--rows", "ar,ar"], "named twice"),
        (["decode", "-r", "0"], "'0' is no number from 1 up"),
        (["kernels", "--check", "-t", "0"], "'0' is no number from 1 up"),
        (["kernels", "--types", "q9"], "no type 'q9'"),
        (["large", "--bytes", "4X"], "K, M, G and T"),
    ],
)
def test_wrong_flags_are_usage_errors(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2
    assert said in capsys.readouterr().err
