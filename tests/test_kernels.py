"""The CPU's matrix kernels: a row's bits depend on the row alone; and the bench that times them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.bench import kernel_check, main
from engine.bench.ggml import TYPES, Library
from engine.bench.kernel_check import check
from engine.bench.kernels import KINDS, _stock, last_level_cache
from engine.errors import NativeError
from engine.kernels import library_folder


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TYPES)
def test_a_row_is_alone_in_company(library: Library, name: str, kind: str) -> None:
    buffers = library.buffers_for(name, *KINDS[kind].sizes)
    assert buffers[-1] == library.plain_buffers()
    for buffer in buffers:
        assert check(library, name, kind, buffer) == [], library.buffer_name(buffer)


def test_repacked_weights_are_among_them(library: Library) -> None:
    if not {"avx2", "asimddp"} & set(Path("/proc/cpuinfo").read_text().split()):
        pytest.skip("this processor has no kernels for repacked weights")
    for kind in KINDS.values():
        names = [library.buffer_name(buffer) for buffer in library.buffers_for("Q4_0", *kind.sizes)]
        assert names == ["CPU_REPACK", "CPU"]


def test_the_check_can_fail(library: Library) -> None:
    def differences(exact: bool) -> list[str]:
        return [
            difference
            for name in TYPES
            for buffer in library.buffers_for(name, *KINDS["dense"].sizes)
            for difference in check(library, name, "dense", buffer, exact=exact, heights=[24], widths=[256])
        ]

    assert differences(exact=True) == []
    assert any("bits differ" in difference for difference in differences(exact=False))


def test_the_check_knows_a_wrong_product(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    dequantised = kernel_check._dequantised

    def changed(*arguments: Any) -> Any:
        return dequantised(*arguments) * 1.05

    monkeypatch.setattr(kernel_check, "_dequantised", changed)
    for kind in KINDS:
        found = check(library, "Q8_0", kind, library.plain_buffers(), heights=[24], widths=[256])
        assert found
        assert all("off by" in difference for difference in found)


def test_what_listens_to_ggml_still_does(library: Library, capfd: pytest.CaptureFixture[str]) -> None:
    buffer = library.buffers_for("Q4_0", *KINDS["dense"].sizes)[0]
    check(library, "Q4_0", "dense", buffer, heights=[24], widths=[256])
    assert capfd.readouterr().err == ""  # repacking says so on stderr if nobody listens


def test_the_bench_compares_rows(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["kernels", "--no-stock", "--types", "q4_0", "--rows", "2", "-r", "1", "-t", "1", "--json"]
    assert main(words) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["kind"], row["rows"]) for row in rows] == [
        ("dense", 1),
        ("dense", 2),
        ("expert", 1),
        ("expert", 2),
    ]
    assert all(row["ms"] > 0 and row["to_one"] > 0 for row in rows)
    assert all(row["read_to_one"] > 0 for row in rows)


def test_another_library_is_timed_in_another_process(capfd: pytest.CaptureFixture[str]) -> None:
    with _stock(library_folder(), "Q8_0", "dense", 1) as stock:
        assert stock.ask() > 0
    with _stock(library_folder(), "Q8_0", "sparse", 1) as stock, pytest.raises(NativeError, match="ended"):
        stock.ask()
    assert "sparse" in capfd.readouterr().err


def test_an_unknown_type_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["kernels", "--types", "q4_0,q9"])
    assert left.value.code == 2
    assert "no type 'q9'" in capsys.readouterr().err


def test_a_type_ggml_lacks_is_not_available(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Library, "has_type", lambda *_: False)
    assert main(["kernels", "--no-stock", "--types", "mxfp4", "--kinds", "dense"]) == 0
    assert main(["kernels", "--check", "--types", "mxfp4", "--kinds", "dense"]) == 0
    assert capsys.readouterr().out.count("not available") == 2


def test_the_largest_cache_counts(tmp_path: Path) -> None:
    for index, size in enumerate(("48K", "1024K", "32768K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert last_level_cache(tmp_path) == 32 << 20
    assert last_level_cache(tmp_path / "nowhere") == 32 << 20
