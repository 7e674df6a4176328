"""The native build's own promises: exact patches, a key of everything, a cache that is whole or empty."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from s2build.cache import Cache
from s2build.patching import apply_patch, parse_patch
from s2build.pip import pip_problem
from s2build.problem import SetupError
from s2build.recipe import Inputs, hook_symbols, make_inputs, patch_files
from s2build.source import check_sha256, set_version, synchronise
from s2build.tools import reason_of
from s2build.wheel import check_wheel

PATCH = """Why this is done.

diff --git a/src/a.cpp b/src/a.cpp
--- a/src/a.cpp
+++ b/src/a.cpp
@@ -1,3 +1,4 @@
 one
-two
+2
+two and a half
 three
@@ -6,2 +7,2 @@ void f()
 six
-seven
+7
diff --git a/src/b.h b/src/b.h
new file mode 100644
--- /dev/null
+++ b/src/b.h
@@ -0,0 +1 @@
+new
"""
BEFORE = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"
AFTER = "one\n2\ntwo and a half\nthree\nfour\nfive\nsix\n7\n"
INPUTS = Inputs("1+s2.1", "ab", "cpu", "g++ 12", "x86_64 avx2", {"recipe.py": "c"}, {"patches/1.patch": "d"})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree/src").mkdir(parents=True)
    (tmp_path / "tree/src/a.cpp").write_text(BEFORE)
    (tmp_path / "one.patch").write_text(PATCH)
    return tmp_path / "tree"


def test_a_patch_changes_what_it_says(tree: Path) -> None:
    apply_patch(tree.parent / "one.patch", tree)
    assert (tree / "src/a.cpp").read_text() == AFTER
    assert (tree / "src/b.h").read_text() == "new\n"


@pytest.mark.parametrize("before", [BEFORE.replace("six", "6"), f"zero\n{BEFORE}", AFTER, ""])
def test_a_patch_that_does_not_fit_is_refused(tree: Path, before: str) -> None:
    (tree / "src/a.cpp").write_text(before)
    with pytest.raises(SetupError, match=r"one\.patch does not apply: src/a\.cpp:\d"):
        apply_patch(tree.parent / "one.patch", tree)


def test_a_patch_for_a_missing_file_is_refused(tree: Path) -> None:
    (tree / "src/a.cpp").unlink()
    with pytest.raises(SetupError, match=r"one\.patch does not apply"):
        apply_patch(tree.parent / "one.patch", tree)


@pytest.mark.parametrize("text", ["", "Only words.\n", PATCH[: PATCH.index(" six")], "--- a/x\n+++ b/x\n"])
def test_a_patch_that_changes_nothing_or_is_cut_short_is_refused(tree: Path, text: str) -> None:
    (tree.parent / "one.patch").write_text(text)
    with pytest.raises(SetupError, match="does not apply"):
        apply_patch(tree.parent / "one.patch", tree)


def test_the_end_of_a_file_without_a_newline() -> None:
    text = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n\\ No newline at end of file\n+new\n"
    (hunk,) = parse_patch(text)[0].hunks
    assert (hunk.old, hunk.new) == (("old",), ("new\n",))


def test_our_patches_are_well_formed() -> None:
    assert patch_files()
    for path in patch_files():
        assert not path.read_text().startswith("diff"), f"{path.name} does not say why it is there"
        assert parse_patch(path.read_text())


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Inputs)])
def test_the_key_changes_with_each_input(field: str) -> None:
    changed: dict[str, Any] = {field: {"other": "x"} if field in ("recipe", "sources") else "other"}
    assert dataclasses.replace(INPUTS, **changed).key != INPUTS.key


def test_a_build_tree_outlives_changes_of_our_sources_only() -> None:
    assert dataclasses.replace(INPUTS, sources={}).tree_key == INPUTS.tree_key
    assert dataclasses.replace(INPUTS, compiler="g++ 13").tree_key != INPUTS.tree_key


def test_the_original_is_built_without_anything_of_ours() -> None:
    stock = make_inputs(preset="cpu", compiler="", cpu="", patched=False)
    assert not stock.sources
    assert "s2" not in stock.version


def wheel_file(folder: Path, members: dict[str, bytes]) -> Path:
    path = folder / "llama_cpp_python-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_the_cache_gives_back_what_it_was_given(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    assert cache.wheel("k") is None
    kept = cache.put("k", wheel_file(tmp_path, {"a": b"1"}))
    assert cache.wheel("k") == kept
    assert cache.wheel("other") is None


def test_a_half_or_damaged_entry_is_not_used_and_is_replaced(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    kept = cache.put("k", wheel_file(tmp_path, {"a": b"1"}))
    kept.write_bytes(kept.read_bytes()[:-1])
    assert cache.wheel("k") is None
    cache.put("k", wheel_file(tmp_path, {"a": b"1"}))
    assert cache.wheel("k") == kept
    (kept.parent / "sha256").unlink()
    assert cache.wheel("k") is None
    # What a set-up killed inside put() leaves behind.
    (tmp_path / "cache/.k.partial").mkdir()
    (tmp_path / "cache/.k.partial/x.whl").write_bytes(b"half")
    assert cache.wheel("k") is None
    assert cache.wheel(cache.put("k", wheel_file(tmp_path, {"a": b"2"})).parent.name)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="XDG_CACHE_HOME"), Cache(tmp_path / "file/cache").lock("build"):
        pass


def test_a_download_that_is_not_the_pinned_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"something else")
    with pytest.raises(SetupError, match=r"x\.tar\.gz is not the file that is pinned"):
        check_sha256(tmp_path / "x.tar.gz", "0" * 64)


def test_a_wheel_without_the_hooks_is_refused(tmp_path: Path) -> None:
    library = "llama_cpp/lib/libllama.so"
    good = wheel_file(tmp_path, {library: b"\0s2_one\0llama_decode\0"})
    check_wheel(good, {"s2_one"})
    with pytest.raises(SetupError, match="lacks s2_two"):
        check_wheel(good, {"s2_one", "s2_two"})
    with pytest.raises(SetupError, match=r"lacks .*libggml-cuda\.so"):
        check_wheel(good, {"s2_one"}, cuda=True)
    with pytest.raises(SetupError, match=r"lacks .*libllama\.so"):
        check_wheel(wheel_file(tmp_path, {"llama_cpp/x.py": b""}), set())


def test_a_wheel_that_would_litter_site_packages_is_refused(tmp_path: Path) -> None:
    wheel = wheel_file(tmp_path, {"llama_cpp/lib/libllama.so": b"\0", "include/llama.h": b""})
    with pytest.raises(SetupError, match=r"include/llama\.h"):
        check_wheel(wheel, set())


def test_the_installed_library_has_every_hook_the_headers_declare() -> None:
    import llama_cpp.llama_cpp

    assert "s2_abi_version" in hook_symbols()
    missing = [name for name in hook_symbols() if not hasattr(llama_cpp.llama_cpp._lib, name)]
    assert not missing


def test_files_that_stay_the_same_keep_their_time(tmp_path: Path) -> None:
    fresh, source = tmp_path / "fresh", tmp_path / "source"
    for root, changed in ((source, "old"), (fresh, "new")):
        (root / "sub").mkdir(parents=True)
        (root / "sub/same.c").write_text("same")
        (root / "changed.c").write_text(changed)
    (source / "gone.c").write_text("")
    for path in source.rglob("*.c"):
        os.utime(path, (1, 1))
    synchronise(fresh, source)
    assert (source / "sub/same.c").stat().st_mtime == 1
    assert (source / "changed.c").read_text() == "new"
    assert (source / "changed.c").stat().st_mtime > 1
    assert not (source / "gone.c").exists()


def test_a_foreign_source_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text('__version__ = "9.9"\n')
    with pytest.raises(SetupError, match="does not hold"):
        set_version(tmp_path / "__init__.py", "1+s2.1")


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("cc1plus: fatal error: x.o: No space left on device", "disk is full"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "out of memory"),
        ("[1/2] x\na.cpp:3:1: error: expected ';'\nninja: build stopped", "a.cpp:3:1: error: expected ';'"),
        ("", "no reason given"),
    ],
)
def test_the_reason_of_a_failed_build(log: str, reason: str) -> None:
    assert reason in reason_of(log)


def test_nothing_outlives_a_killed_set_up(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"echo $$ > {pid_file}; exec sleep 600"
    code = f"from s2build.children import run; run(['sh', '-c', {child!r}])"
    packaging = Path(__file__).parents[1] / "packaging"
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(packaging)})
    wait_until(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: is_gone(int(pid_file.read_text())))


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie nobody has collected yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (
            "WARNING: Retrying after connection broken\nERROR: No matching distribution found for a==1",
            "reached",
        ),
        ("ERROR: Could not find a version\nERROR: No matching distribution found for a==1\n", "a==1"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n", "DO NOT MATCH"),
        ("", "no reason given"),
    ],
)
def test_what_a_failure_of_pip_means(output: str, problem: str) -> None:
    assert problem in pip_problem(output)
    assert "\n" not in pip_problem(output)
